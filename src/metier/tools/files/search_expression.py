"""Regular expressions for searching lines: a subset that RE2 and ripgrep understand alike. Takes linear time.

RE2 decides what matches; ripgrep only names files that are worth reading, so its expression may match more, never less.
"""

import re
from collections.abc import Callable, Iterator
from typing import Protocol, cast

import re2

from metier.errors import ToolFailed
from metier.lazy_regex import lazy_regex

MAX_CHARACTERS = 1000
_MAX_PROGRAM_BYTES = 8 * 1024 * 1024
_ESCAPE = lazy_regex(r"\\(?:[pP](?:\{[^}]*\}|.)|x\{[^}]*\}|.)?", re.DOTALL)
_NAMED_CLASS = lazy_regex(r"\[:\^?[a-z]+:\]")
_GROUP = lazy_regex(r"\(\?(?:P?<[A-Za-z_]\w*>|-?i[:)]|:)")
_REFUSED_ESCAPES = frozenset(("\\A", "\\z", "\\Z", "\\C", "\\Q", "\\E", "\\n", "\\"))
_OUTSIDE = {
    "\\w": "[0-9A-Za-z_]", "\\W": "[^0-9A-Za-z_]", "\\d": "[0-9]", "\\D": "[^0-9]",
    "\\s": "[\\t\\f\\r ]", "\\S": "[^\\t\\f\\r ]", "\\b": "(?-u:\\b)", "\\B": "(?-u:\\B)", "$": "(?:\\r?$)",
}  # fmt: skip
"""What RE2 means by these, in ripgrep's words; a line there may still end with a carriage return."""
_INSIDE = {"\\w": "0-9A-Za-z_", "\\d": "0-9", "\\s": "\\t\\f\\r "}
_DIFFERENT_INSIDE = frozenset(("\\W", "\\D", "\\S", "\\b", "[", "&", "~"))
"""In a class these have no short translation, or a meaning of their own in ripgrep."""


class _Match(Protocol):
    def start(self) -> int: ...


class _Compiled(Protocol):
    def search(self, text: bytes, pos: int) -> _Match | None: ...


# The library has no types; these two are what its documentation says.
_compile = cast("Callable[[bytes, re2.Options], _Compiled]", re2.compile)
_InvalidExpression = cast("type[Exception]", re2.error)


class SearchExpression:
    def __init__(self, text: str, *, ignore_case: bool) -> None:
        """Raises `ToolFailed` for what is not an expression, or not one of the subset."""
        _check(text)
        options = re2.Options()
        options.log_errors = False
        options.never_nl = True
        options.case_sensitive = not ignore_case
        options.max_mem = _MAX_PROGRAM_BYTES
        try:
            self._compiled = _compile(f"(?m:{text})".encode(), options)
        except _InvalidExpression as error:
            raise _invalid(text, _reason(error)) from error
        self.text = text
        self.ignore_case = ignore_case

    def find(self, data: bytes, start: int) -> int:
        """Where the next match at or after `start` begins, -1 where there is none."""
        found = self._compiled.search(data, start)
        return found.start() if found else -1


def translate_for_ripgrep(text: str) -> str | None:
    """An expression that matches in every line in which `text` does; None where that cannot be said."""
    parts: list[str] = []
    for piece, in_class in _split(text):
        if in_class and (piece in _DIFFERENT_INSIDE or (piece == "-" and parts[-1] == "-")):
            return None
        known = _INSIDE if in_class else _OUTSIDE
        parts.append(known.get(piece, piece))
    return "".join(parts)


def _split(text: str) -> Iterator[tuple[str, bool]]:
    """The pieces of an expression, and whether each is within a character class. Raises `ToolFailed`."""
    place = 0
    in_class = is_first = False
    while place < len(text):
        piece = _piece_at(text, place, in_class=in_class)
        yield piece, in_class
        place += len(piece)
        if not in_class:
            in_class = is_first = piece == "["
        elif piece == "]" and not is_first:
            in_class = False
        else:
            is_first = is_first and piece == "^"


def _piece_at(text: str, place: int, *, in_class: bool) -> str:
    if (found := _ESCAPE.match(text, place)) is not None:
        return found.group()
    if in_class:
        found = _NAMED_CLASS.match(text, place)
    elif text.startswith("(?", place):
        found = _GROUP.match(text, place)
        if found is None:
            raise _invalid(text, f"{text[place : place + 4]!r} is not supported")
    return found.group() if found else text[place]


def _check(text: str) -> None:
    if not text or len(text) > MAX_CHARACTERS:
        raise _invalid(text, f"it must have 1 to {MAX_CHARACTERS} characters")
    if any(mark in text for mark in "\n\r\0"):
        raise _invalid(text, "only single lines are searched")
    if any("\ud800" <= letter <= "\udfff" for letter in text):
        raise _invalid(text, "it is not valid Unicode")
    for piece, _ in _split(text):
        if piece in _REFUSED_ESCAPES:
            raise _invalid(text, f"{piece!r} is not supported, only single lines are searched")


def _invalid(text: str, reason: str) -> ToolFailed:
    return ToolFailed(f"Expression {text[:100]!r} cannot be used: {reason}", code="invalid_input")


def _reason(error: Exception) -> str:
    word: object = error.args[0] if error.args else ""
    return word.decode("utf-8", "replace") if isinstance(word, bytes) else str(word)
