"""Regular expressions of rules: RE2, whose cost is linear in the text, always matched against the whole value."""

import re
from collections.abc import Callable
from typing import Any, cast

import re2

MAX_PATTERN_CHARACTERS = 1_000
MAX_MEMORY_BYTES = 1 << 20
"""Limit for the compiled expression and its matching. An expression that needs more is rejected when it is loaded."""

_REPEATED_REPETITION = re.compile(r"\((?:\?:)?(?:\\.|\[[^\]]+\]|[^\\()\[\]])[+*]\)(?:[+*]|\{\d+,\})")
_ATOMS = re.compile(r"\\.|\[\^?\]?[^\]]*\]")
_INNER = re.compile(r"\([^()]*\)")
_LITERALS = re.compile(r"\^?([A-Za-z0-9_/ -]*)")


class BadPattern(ValueError):
    """An expression cannot be used; the text says why."""


def compile_pattern(pattern: str) -> Callable[[str], bool]:
    """Compile an expression to a test of a whole text. Raises `BadPattern`."""
    if len(pattern) > MAX_PATTERN_CHARACTERS:
        raise BadPattern(f"it is longer than {MAX_PATTERN_CHARACTERS} characters")
    if found := _REPEATED_REPETITION.search(pattern):
        raise BadPattern(f"{found[0]!r} repeats a repetition")
    options: Any = re2.Options()
    options.max_mem = MAX_MEMORY_BYTES
    options.log_errors = False  # RE2 would print errors of an expression to standard error
    try:
        compiled: Any = re2.compile(pattern, options)  # pyright: ignore[reportUnknownMemberType] - it has no types
    except re2.error as error:  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]
        raise BadPattern(_reason(cast(Exception, error))) from error
    fullmatch = compiled.fullmatch
    start = get_literal_start(pattern)

    def test(text: str) -> bool:
        if not text.startswith(start):
            return False
        try:
            return fullmatch(text) is not None
        except UnicodeEncodeError:
            # RE2 reads UTF-8, which cannot represent a lone surrogate.
            return False

    return test


def get_literal_start(pattern: str) -> str:
    """Return the letters that every match starts with: comparing them is much cheaper than running RE2."""
    if "|" in pattern and "|" in _INNER.sub("", _ATOMS.sub("", pattern)):
        return ""
    found = _LITERALS.match(pattern)
    literal = found[1] if found else ""
    following = pattern[found.end() : found.end() + 1] if found else ""
    return literal[:-1] if following in ("*", "?", "+", "{") and following else literal


def _reason(error: Exception) -> str:
    first: object = error.args[0] if error.args else ""
    return first.decode("utf-8", "replace") if isinstance(first, bytes) else str(first) or "it is not valid"
