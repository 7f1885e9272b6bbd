"""The one boundary between a command and its reader: JSON and text without secrets and without terminal control.

Secrets are known values and keys in a vendor's format. Names such as `token` do not count here: a command may print a
token that its caller needs. In JSON, control and bidi characters become JSON escapes, which mean the same.
"""

import contextlib
import functools
import json
import os
import sys
import textwrap
from collections.abc import Iterable, Mapping
from types import MappingProxyType

from metier.definitions.problems import Problem
from metier.telemetry.environment_secrets import list_secret_values
from metier.telemetry.redaction import Json, Redactor, build_redactor
from metier.telemetry.sanitize import escape_json, sanitize


def build_output_redactor(values: Iterable[str] = ()) -> Redactor:
    """For these values and those of the environment."""
    return _build((*list_secret_values(os.environ), *values))


NOTHING: Mapping[str, str] = MappingProxyType({})


def write_json(value: object, *, redactor: Redactor | None = None, kept: Mapping[str, str] = NOTHING) -> None:
    sys.stdout.write(render_json(value, indent=2, redactor=redactor, kept=kept) + "\n")


def write_json_line(value: object, *, redactor: Redactor | None = None, kept: Mapping[str, str] = NOTHING) -> None:
    sys.stdout.write(render_json(value, redactor=redactor, kept=kept) + "\n")


def render_json(
    value: object, *, indent: int | None = None, redactor: Redactor | None = None, kept: Mapping[str, str] = NOTHING
) -> str:
    """`kept` are fields of an object that the reader is given as they are, such as a token made for them."""
    plain: Json = json.loads(json.dumps(value))
    clean = (redactor or build_output_redactor()).redact_value(plain)
    clean = {**clean, **kept} if isinstance(clean, dict) and kept else clean
    return escape_json(json.dumps(clean, ensure_ascii=False, indent=indent))


def write_text(text: str, *, redactor: Redactor | None = None) -> None:
    """Text of several lines, at a terminal and in a pipe alike; it ends with a line feed."""
    shown = printable(text, redactor=redactor)
    sys.stdout.write(shown if shown.endswith("\n") else f"{shown}\n")


class JsonList:
    """A JSON array written to stdout item by item, so that a long one is never held in memory. As `write_json` does.

    Nothing is written before the first item or the end: a command that fails first leaves no half of an answer.
    """

    def __init__(self, *, opening: str = "", closing: str = "") -> None:
        """`opening` and `closing` stand around the array, of an object for instance; it is indented like `opening`."""
        self._opening, self._closing = opening, closing
        self._indent = "  " if opening else ""
        self._is_empty = True
        self._redactor = build_output_redactor()  # looking through the environment takes longer than an item

    def add(self, value: object) -> None:
        text = render_json(value, indent=2, redactor=self._redactor)
        start = f"{self._opening}[\n" if self._is_empty else ",\n"
        self._is_empty = False
        sys.stdout.write(start + textwrap.indent(text, self._indent + "  "))

    def close(self) -> None:
        end = f"{self._opening}[]" if self._is_empty else f"\n{self._indent}]"
        sys.stdout.write(f"{end}{self._closing}\n")


def write_line(text: str = "") -> None:
    sys.stdout.write(f"{printable(text)}\n")


def warn_line(text: str) -> None:
    """A closed stderr is no reason to stop, least of all for a run."""
    with contextlib.suppress(OSError):
        sys.stderr.write(f"{printable(text)}\n")


def count(number: int, noun: str, plural: str = "") -> str:
    """Return a number with its noun: `1 task`, `2 tasks`."""
    return f"{number} {noun if number == 1 else plural or f'{noun}s'}"


def ring() -> None:
    """The bell of the terminal; nothing where there is none."""
    if sys.stderr.isatty():
        sys.stderr.write("\a")
        sys.stderr.flush()


def printable(text: str, *, redactor: Redactor | None = None) -> str:
    """Redact secrets, and make control, bidirectional and invisible characters visible."""
    return (redactor or build_output_redactor()).redact(sanitize(text))


@functools.lru_cache(maxsize=4)
def _build(values: tuple[str, ...]) -> Redactor:
    return build_redactor(values=values, generic_names=False, random_words=False)


def problem_as_json(problem: Problem) -> dict[str, object]:
    return {
        "severity": problem.severity,
        "code": problem.code,
        "line": problem.line,
        "message": problem.message,
    }
