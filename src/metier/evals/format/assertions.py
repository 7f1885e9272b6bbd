"""Assertions of an `evals.json` as checks or sentences, whatever tool wrote it, and paths into JSON values. Pure.

A wrong check is worse than none: an object becomes a check by code only if it says what to look for. An object that is
neither a check nor a sentence is a problem, never dropped.
"""

import re
from collections.abc import Sequence
from typing import cast

from msgspec import Struct
from pydantic import JsonValue, ValidationError

from metier.approval.regex import BadPattern, compile_pattern
from metier.definitions.nearest import hint_nearest
from metier.evals.format.cases import CHECKS, NAMES, AnyCheck, FileMatches, JsonPath, Matches, Sentence

_PART = re.compile(r"\.([A-Za-z_][\w-]*)|\[(\d+|\*)\]|\[['\"]([^'\"]+)['\"]\]")

type Step = str | int | None
"""A name, a position, or None for every element."""

SENTENCE_KEYS = (
    "text", "description", "assertion", "expectation", "statement", "criterion", "criteria", "condition", "expected",
    "requirement", "question", "rubric", "prompt", "check", "title", "name", "value", "id",
)  # fmt: skip
"""Where other tools put the words, the surest first."""
_OPERANDS = ("value", "pattern", "regex", "substring", "expected", "contains", "string", "target", "needle")
_PATHS = ("path", "file", "filename", "target", "value")
_TOOLS = ("tool", "tool_name", "value", "target")
_TEXT_KINDS: dict[str, tuple[str, bool]] = {
    "contains": ("contains", False),
    "includes": ("contains", False),
    "icontains": ("contains", False),
    "output_contains": ("contains", False),
    "text_contains": ("contains", False),
    "string_contains": ("contains", False),
    "substring": ("contains", False),
    "not_contains": ("contains", True),
    "excludes": ("contains", True),
    "not_includes": ("contains", True),
    "does_not_contain": ("contains", True),
    "equals": ("equals", False),
    "exact": ("equals", False),
    "exact_match": ("equals", False),
    "regex": ("matches", False),
    "regexp": ("matches", False),
    "matches": ("matches", False),
    "pattern": ("matches", False),
    "regex_match": ("matches", False),
    "output_matches": ("matches", False),
    "not_regex": ("matches", True),
    "not_matches": ("matches", True),
    "regex_absent": ("matches", True),
}
_FILE_KINDS = {"file_exists": False, "file_created": False, "output_file_exists": False, "file_not_exists": True}
_TOOL_KINDS = {
    "tool_called": "tool_called",
    "tool_used": "tool_called",
    "tool_call": "tool_called",
    "tool_not_called": "tool_not_called",
    "tool_not_used": "tool_not_called",
}


class BadPath(ValueError):
    """The text is no path; the message says where it stops being one."""


def parse_path(text: str) -> tuple[Step, ...]:
    """Raises `BadPath`."""
    rest = text.strip().removeprefix("$")
    if rest and rest[0] not in ".[":
        rest = f".{rest}"
    steps: list[Step] = []
    position = 0
    while position < len(rest):
        part = _PART.match(rest, position)
        if part is None:
            raise BadPath(f"{rest[position:][:20]!r} is neither a name nor a position")
        name, number, quoted = part.groups()
        steps.append(name or quoted or (None if number == "*" else int(number)))
        position = part.end()
    return tuple(steps)


def find_values(value: JsonValue, steps: Sequence[Step]) -> list[JsonValue]:
    """Every value that the path leads to; none where it leads nowhere."""
    found = [value]
    for step in steps:
        found = [inner for outer in found for inner in _enter(outer, step)]
    return found


def _enter(value: JsonValue, step: Step) -> list[JsonValue]:
    match value, step:
        case dict(), str():
            return [value[step]] if step in value else []
        case dict(), None:
            return list(value.values())
        case list(), None:
            return value
        case list(), int():
            return [value[step]] if step < len(value) else []
        case _:
            return []


class Unusable(Struct, frozen=True):
    """Why nothing can be checked."""

    message: str
    hint: str = ""


type Mapped = AnyCheck | Unusable


def map_assertion(value: JsonValue) -> Mapped:
    """One element of `assertions`, `expectations` or a list like these."""
    match value:
        case str() if value.strip():
            return Sentence(text=value.strip())
        case dict():
            return _map_object(value)
        case _:
            return Unusable("It is neither a sentence nor an object", "Write a sentence, or an object with 'check'")


def _map_object(value: dict[str, JsonValue]) -> Mapped:
    named = value.get("check")
    if isinstance(named, str) and named in NAMES:
        return parse_check(value)
    if isinstance(named, str) and _is_word(named) and not _get_text(value, but="check"):
        hint = hint_nearest(named, NAMES) or f"Known are {', '.join(NAMES)}"
        return Unusable(f"There is no check {named!r}", hint)
    found = _map_kind(value)
    if found is not None:
        return found
    text = _get_text(value)
    if not text:
        return Unusable("It does not say what is expected", "Add 'text' with a sentence, or 'check' with its fields")
    return Sentence(text=text)


def parse_check(value: dict[str, JsonValue]) -> Mapped:
    """A check in our own words. A field that it does not have, or a pattern that cannot be used, is a problem."""
    try:
        check = CHECKS.validate_python(value)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        place = ".".join(str(part) for part in first["loc"][1:])
        return Unusable(f"Check {value['check']!r} cannot be used: {place}: {first['msg']}".replace(": : ", ": "))
    return find_fault(check) or check


def find_fault(check: AnyCheck) -> Unusable | None:
    """What its fields hold that nothing could be held against: an expression, a path."""
    patterns = [check.pattern] if isinstance(check, Matches | FileMatches) else []
    if isinstance(check, JsonPath):
        patterns = [check.matches] if check.matches else []
        try:
            parse_path(check.path)
        except BadPath as error:
            return Unusable(f"Path {check.path!r} cannot be used: {error}", "Such as '$.items[0].name'")
    for pattern in patterns:
        try:
            compile_pattern(anywhere(pattern))
        except BadPattern as bad:
            hint = "The syntax is that of RE2, without look-around"
            return Unusable(f"Expression {pattern!r} cannot be used: {bad}", hint)
    return None


def anywhere(pattern: str) -> str:
    """The expression for the whole text that holds the pattern somewhere."""
    return f"(?s:.*)(?:{pattern})(?s:.*)"


def _map_kind(value: dict[str, JsonValue]) -> Mapped | None:
    """An object whose `type` says how to look, and that holds what to look for; None where it only describes."""
    kind = str(value.get("type") or value.get("kind") or value.get("method") or "").lower().replace("-", "_")
    name = _get_text(value, but="check") if "name" not in value else str(value["name"])
    label: dict[str, JsonValue] = {"name": name[:200]}
    if kind in _TEXT_KINDS or (not kind and isinstance(value.get("pattern"), str)):
        check, negate = _TEXT_KINDS.get(kind, ("matches", False))
        operand = _find(value, _OPERANDS)
        if operand is None:
            return None
        key = "pattern" if check == "matches" else "text"
        file = value.get("file") or value.get("path")
        built: dict[str, JsonValue] = {"check": check, key: operand, "negate": negate, **label}
        if check == "contains":
            built["ignore_case"] = kind == "icontains"
        return parse_check({**built, "file": file} if isinstance(file, str) else built)
    if kind in _FILE_KINDS and (path := _find(value, _PATHS)) is not None:
        return parse_check({"check": "file_exists", "path": path, "negate": _FILE_KINDS[kind], **label})
    if kind in _TOOL_KINDS and (tool := _find(value, _TOOLS)) is not None:
        return parse_check({"check": _TOOL_KINDS[kind], "tool": tool, **label})
    return None


def _find(value: dict[str, JsonValue], keys: tuple[str, ...]) -> str | None:
    return next((found for key in keys if isinstance(found := value.get(key), str) and found), None)


def _get_text(value: dict[str, JsonValue], *, but: str = "") -> str:
    texts = (value.get(key) for key in SENTENCE_KEYS if key != but)
    return next((text.strip() for text in texts if isinstance(text, str) and text.strip()), "")


def _is_word(text: str) -> bool:
    """One word is meant as the name of a check, several are a sentence."""
    return bool(text) and not any(character.isspace() for character in text.strip())


def list_values(value: JsonValue) -> list[JsonValue]:
    """A list as it is; a text or an object as a list of one."""
    if isinstance(value, list):
        return cast("list[JsonValue]", value)
    return [] if value is None else [value]
