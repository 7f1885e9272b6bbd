"""Output of commands: JSON and text, with secrets redacted and control characters escaped.

Secrets are known values and keys in a vendor's format. Values are not redacted because of a name such as `token`: a
command may print a token that its caller needs. In JSON, control and bidi characters become equivalent JSON escapes.
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
    """Build the redactor for these secrets and those of the environment."""
    return _build((*list_secret_values(os.environ), *values))


NONE: Mapping[str, str] = MappingProxyType({})


def write_json(value: object, *, redactor: Redactor | None = None, verbatim: Mapping[str, str] = NONE) -> None:
    sys.stdout.write(render_json(value, indent=2, redactor=redactor, verbatim=verbatim) + "\n")


def write_json_line(value: object, *, redactor: Redactor | None = None, verbatim: Mapping[str, str] = NONE) -> None:
    sys.stdout.write(render_json(value, redactor=redactor, verbatim=verbatim) + "\n")


def render_json(
    value: object,
    *,
    indent: int | None = None,
    redactor: Redactor | None = None,
    verbatim: Mapping[str, str] = NONE,
) -> str:
    """Render redacted JSON. `verbatim` are fields to add without redaction, such as a token for the caller."""
    # The redactor looks into lists and dicts only; a tuple would pass as it is.
    plain: Json = json.loads(json.dumps(value))
    clean = (redactor or build_output_redactor()).redact_value(plain)
    clean = {**clean, **verbatim} if isinstance(clean, dict) and verbatim else clean
    return escape_json(json.dumps(clean, ensure_ascii=False, indent=indent))


def write_text(text: str, *, redactor: Redactor | None = None) -> None:
    """Write a text of several lines, with a line feed at its end."""
    shown = printable(text, redactor=redactor)
    sys.stdout.write(shown if shown.endswith("\n") else f"{shown}\n")


class JsonList:
    """Writes a JSON array to stdout item by item, so that a long one is never in memory as a whole.

    Nothing is written before the first item or `close`, so that a command that fails early prints no partial JSON.
    """

    def __init__(self, *, opening: str = "", closing: str = "") -> None:
        """`opening` and `closing` are written around the array, for example those of an object that contains it."""
        self._opening, self._closing = opening, closing
        self._indent = "  " if opening else ""
        self._is_empty = True
        self._redactor = build_output_redactor()  # once, because it scans the environment

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
    """Write a line to stderr. A closed stderr must not fail the command, least of all a run."""
    with contextlib.suppress(OSError):
        sys.stdout.flush()  # keeps the order of the lines if both streams go to one file
    with contextlib.suppress(OSError):
        sys.stderr.write(f"{printable(text)}\n")


def ring() -> None:
    """Ring the terminal's bell, if stderr is a terminal."""
    if sys.stderr.isatty():
        sys.stderr.write("\a")
        sys.stderr.flush()


def printable(text: str, *, redactor: Redactor | None = None) -> str:
    """Redact secrets, and make control, bidirectional and invisible characters visible."""
    return (redactor or build_output_redactor()).redact(sanitize(text))


# Cached, because every printed line asks for it.
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


def located_as_json(problem: Problem) -> dict[str, object]:
    """Build the JSON of a problem whose file the surrounding object does not name."""
    return {**problem_as_json(problem), "file": problem.file, "hint": problem.hint}
