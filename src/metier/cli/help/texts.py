"""What `--help` says beyond the first sentence: a paragraph and examples per command, read from `commands.md`."""

import re
from functools import cache
from importlib.resources import files

from metier.dataclass import dataclass
from metier.lazy_regex import lazy_regex

_SECTION = lazy_regex(r"^## (agent [a-z -]+)$", re.MULTILINE)
_EXAMPLE = lazy_regex(r"^\$ (?P<line>.*?)(?:\s+# *(?P<note>[^→]*?))?(?: *→ (?P<code>\d+))?$")


@dataclass(frozen=True, slots=True, kw_only=True)
class Example:
    line: str
    """As a person types it; words in capitals stand for an id."""
    note: str = ""
    exit_code: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class CommandText:
    about: str
    """When to use the command, as one paragraph."""
    examples: tuple[Example, ...]


@cache
def load_texts() -> dict[str, CommandText]:
    """By the whole path of a command, such as `agent runs list`; in the order in which groups list their commands."""
    text = files("metier.cli.help").joinpath("commands.md").read_text(encoding="utf-8")
    _, *parts = _SECTION.split(text)
    return {path: _parse_section(body) for path, body in zip(parts[::2], parts[1::2], strict=True)}


def _parse_section(body: str) -> CommandText:
    about: list[str] = []
    examples: list[Example] = []
    for line in body.splitlines():
        found = _EXAMPLE.match(line)
        if found is None:
            about.append(line.strip())
            continue
        note, code = (found["note"] or "").strip(), int(found["code"] or 0)
        examples.append(Example(line=found["line"], note=note, exit_code=code))
    return CommandText(about=" ".join(line for line in about if line), examples=tuple(examples))
