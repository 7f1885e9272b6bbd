"""Patterns for paths: `*`, `?`, `[a-z]`, `{a,b}` within a name, `**` for any number of folders. Pure, never slow."""

import re
from fnmatch import translate

from metier.errors import ToolFailed
from metier.lazy_regex import lazy_regex

MAX_PATTERN_CHARACTERS = 512
MAX_PARTS = 32
MAX_ALTERNATIVES = 64
_BRACES = lazy_regex(r"\{([^{}]*)\}")


class PathPattern:
    """Without a slash a pattern is about the name, in any folder; with one, about the whole path."""

    def __init__(self, text: str) -> None:
        """Raises `ToolFailed` for a pattern that leads elsewhere or is too long."""
        _check(text)
        plain = text.removeprefix("./")
        if plain.endswith("/"):
            plain += "**"
        if "/" not in plain:
            plain = f"**/{plain}"
        self._alternatives = [_split(one) for one in _expand(plain)]
        self._compiled = [[None if part == "**" else _compile(part) for part in one] for one in self._alternatives]

    @property
    def names(self) -> frozenset[str]:
        """The parts that are plain names: a folder that is otherwise passed over is meant when it is named."""
        return frozenset(part for one in self._alternatives for part in one if not re.search(r"[*?\[]", part))

    def matches(self, path: str) -> bool:
        parts = path.split("/")
        return any(_matches(pattern, parts) for pattern in self._compiled)


def _check(text: str) -> None:
    reason = ""
    if not text or len(text) > MAX_PATTERN_CHARACTERS:
        reason = f"must have 1 to {MAX_PATTERN_CHARACTERS} characters"
    elif text.startswith(("/", "~")) or ".." in text.split("/") or "\\" in text or "\0" in text:
        reason = "must be relative to the folder, without '..' and backslashes"
    if reason:
        raise ToolFailed(f"Pattern {text[:100]!r} {reason}", code="invalid_input")


def _expand(text: str) -> list[str]:
    """`a.{b,c}` is `a.b` and `a.c`. Braces that do not close stay as they are."""
    done: list[str] = []
    todo = [text]
    while todo:
        one = todo.pop(0)
        found = _BRACES.search(one)
        if found is None:
            done.append(one)
        else:
            todo += [one[: found.start()] + choice + one[found.end() :] for choice in found.group(1).split(",")]
        if len(done) + len(todo) > MAX_ALTERNATIVES:
            raise ToolFailed(f"Pattern {text[:100]!r} has too many alternatives", code="invalid_input")
    return done


def _split(text: str) -> list[str]:
    parts: list[str] = []
    for part in text.split("/"):
        if part not in {"", "."} and not (part == "**" and parts[-1:] == ["**"]):
            parts.append(part)
    if len(parts) > MAX_PARTS:
        raise ToolFailed(f"Pattern {text[:100]!r} has more than {MAX_PARTS} parts", code="invalid_input")
    return parts


def _compile(part: str) -> re.Pattern[str]:
    """`fnmatch` writes expressions that do not go back, so they take linear time."""
    return re.compile(translate(part.replace("[^", "[!")))


def _matches(pattern: list[re.Pattern[str] | None], parts: list[str]) -> bool:
    """All places in the pattern that the parts so far can have led to."""
    places = _skip({0}, pattern)
    for part in parts:
        reached: set[int] = set()
        for place in places:
            if place == len(pattern):
                continue
            step = pattern[place]
            if step is None:
                reached.add(place)
            elif step.match(part):
                reached.add(place + 1)
        places = _skip(reached, pattern)
        if not places:
            return False
    return len(pattern) in places


def _skip(places: set[int], pattern: list[re.Pattern[str] | None]) -> set[int]:
    """`**` also stands for no folder at all; two never follow each other."""
    return places | {place + 1 for place in places if place < len(pattern) and pattern[place] is None}
