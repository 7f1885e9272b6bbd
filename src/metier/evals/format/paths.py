"""Places in a JSON value: `$.items[0].name`, `$.items[*].name`. A small part of JSONPath, without filters. Pure."""

from collections.abc import Sequence

from pydantic import JsonValue

from metier.lazy_regex import lazy_regex

_PART = lazy_regex(r"\.([A-Za-z_][\w-]*)|\[(\d+|\*)\]|\[['\"]([^'\"]+)['\"]\]")

type Step = str | int | None
"""A name, a position, or None for every element."""


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
