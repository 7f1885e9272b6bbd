"""Help texts of commands: the paragraph and the examples of `commands.md`, and the order of options."""

import re
from collections.abc import Mapping
from functools import cache
from importlib.resources import files
from typing import Any

from msgspec import Struct

_SECTION = re.compile(r"^## (agent [a-z -]+)$", re.MULTILINE)
_EXAMPLE = re.compile(r"^\$ (?P<line>.*?)(?:\s+# *(?P<note>[^→]*?))?(?: *→ (?P<code>\d+))?$")


class Example(Struct, frozen=True, kw_only=True):
    line: str
    """As a person types it; words in capitals stand for an id."""
    note: str = ""
    exit_code: int = 0


class CommandText(Struct, frozen=True, kw_only=True):
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


_KEEP_LINES = "\b\n"
"""Before a paragraph that the formatter must not wrap."""


def dress(command: Any, path: str) -> None:  # noqa: ANN401 - Typer does not export the type of its commands
    """Change `command` and those below it in place; `path` is what a person types, such as `agent runs`."""
    texts = load_texts()
    if text := texts.get(path):
        said = (command.help or "").strip()
        # Commands are kept for the next call in a process, so this one may have its paragraph already.
        command.help = said if said.endswith(text.about) else "\n\n".join(filter(None, (said, text.about)))
        command.epilog = render_examples(text)
    children: dict[str, Any] | None = getattr(command, "commands", None)
    if not children:
        return
    known = [each.removeprefix(f"{path} ") for each in texts if each.startswith(f"{path} ")]
    order = {name: number for number, name in enumerate(known)}
    ordered = sorted(children.items(), key=lambda item: order.get(item[0], len(order)))
    children.clear()
    children.update(ordered)
    for name, child in ordered:
        dress(child, f"{path} {name}")


def render_examples(text: CommandText) -> str:
    """Aligned where the note fits beside the line, else below it."""
    if not text.examples:
        return ""
    lines = ["Examples:"]
    for example in text.examples:
        if example.note:
            lines.append(f"  # {example.note}")
        lines.append(f"  {example.line}")
    return _KEEP_LINES + "\n".join(lines)


def find_commands(command: Any, path: str) -> Mapping[str, Any]:  # noqa: ANN401 - as above
    """Every command that does something, by its path: a group counts where it runs without a name behind it."""
    children: dict[str, Any] = getattr(command, "commands", None) or {}
    found: dict[str, Any] = {} if children and not command.invoke_without_command else {path: command}
    for name, child in children.items():
        found |= find_commands(child, f"{path} {name}")
    return found
