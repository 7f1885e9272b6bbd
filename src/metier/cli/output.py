"""How commands write data: JSON for programs, and text from files without what could steer a terminal."""

import contextlib
import json
import sys
import textwrap

from metier.definitions.problems import Problem


def write_json(value: object) -> None:
    sys.stdout.write(json.dumps(value, ensure_ascii=False, indent=2) + "\n")


class JsonList:
    """A JSON array written to stdout item by item, so that a long one is never held in memory. As `write_json` does."""

    def __init__(self, *, indent: int = 0) -> None:
        self._indent = " " * indent
        self._is_empty = True
        sys.stdout.write("[")

    def add(self, value: object) -> None:
        text = json.dumps(value, ensure_ascii=False, indent=2)
        start = "\n" if self._is_empty else ",\n"
        self._is_empty = False
        sys.stdout.write(start + textwrap.indent(text, self._indent + "  "))

    def close(self) -> None:
        sys.stdout.write("]" if self._is_empty else f"\n{self._indent}]")


def write_line(text: str = "") -> None:
    sys.stdout.write(f"{printable(text)}\n")


def warn_line(text: str) -> None:
    """Nobody who listens on stderr is no reason to stop, least of all for a run."""
    with contextlib.suppress(OSError):
        sys.stderr.write(f"{printable(text)}\n")


def printable(text: str) -> str:
    """Control, bidirectional and invisible characters as escapes; a file must not be able to move the cursor."""
    if text.isprintable():
        return text
    return "".join(
        character
        if character.isprintable() or character in "\n\t\u200d"
        else character.encode("unicode_escape").decode("ascii")
        for character in text
    )


def problem_as_json(problem: Problem) -> dict[str, object]:
    return {
        "severity": problem.severity,
        "code": problem.code,
        "line": problem.line,
        "message": problem.message,
    }
