"""Give commands their help: the paragraph and the examples of `commands.md`, and the order of a group."""

from collections.abc import Mapping
from typing import Any

from metier.cli.help.texts import CommandText, load_texts

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
