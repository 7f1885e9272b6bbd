"""`agent help`, and the texts of all help: paragraphs, examples and order of commands, from `commands.md`."""

import re
from collections.abc import Mapping, Sequence
from functools import cache
from importlib.resources import files
from itertools import takewhile
from typing import Annotated, Any

import typer
from msgspec import Struct

from metier.cli.root import ADVANCED, write_section
from metier.cli.shared.output import write_text

_SECTION = re.compile(r"^## (agent [a-z -]+)$", re.MULTILINE)
_EXAMPLE = re.compile(r"^\$ (?P<line>.*?)(?:\s+# *(?P<note>.*))?$")


class Example(Struct, frozen=True, kw_only=True):
    line: str
    """The command line as the user types it, with `APPROVAL` as a placeholder for an ID."""
    note: str = ""


class CommandText(Struct, frozen=True, kw_only=True):
    about: str
    """A paragraph on when to use the command."""
    examples: tuple[Example, ...]


@cache
def load_texts() -> dict[str, CommandText]:
    """Return the texts by command path, such as `agent runs list`, in the order of the listings."""
    text = files("metier.cli").joinpath("commands.md").read_text(encoding="utf-8")
    _, *parts = _SECTION.split(text)
    return {path: _parse_section(body) for path, body in zip(parts[::2], parts[1::2], strict=True)}


def find_command(args: Sequence[str]) -> str:
    """Return the command that a command line calls, such as `agent runs list`."""
    known = {tuple(path.split()[:length]) for path in load_texts() for length in (2, 3)}
    command = ("agent",)
    for word in takewhile(lambda arg: not arg.startswith("-"), args):
        if (*command, word) not in known:
            break
        command = (*command, word)
    return " ".join(command)


def _parse_section(body: str) -> CommandText:
    about: list[str] = []
    examples: list[Example] = []
    for line in body.splitlines():
        found = _EXAMPLE.match(line)
        if found is None:
            about.append(line.strip())
            continue
        examples.append(Example(line=found["line"], note=(found["note"] or "").strip()))
    return CommandText(about=" ".join(line for line in about if line), examples=tuple(examples))


_KEEP_LINES = "\b\n"
"""Marks a paragraph that the formatter must not wrap."""


def dress(command: Any, path: str) -> None:  # noqa: ANN401 - Typer does not export the type of its commands
    """Add the texts to `command` and its subcommands in place; `path` is the command's path, such as `agent runs`."""
    texts = load_texts()
    if text := texts.get(path):
        docstring = (command.help or "").strip()
        # Commands are cached for the next call in this process, so the paragraph may be there already.
        if not docstring.endswith(text.about):
            command.help = "\n\n".join(filter(None, (docstring, text.about)))
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
    """Render each example with its note above it."""
    if not text.examples:
        return ""
    lines = ["Examples:"]
    for example in text.examples:
        if example.note:
            lines.append(f"  # {example.note}")
        lines.append(f"  {example.line}")
    return _KEEP_LINES + "\n".join(lines)


def list_commands(command: Any, path: str) -> Mapping[str, Any]:  # noqa: ANN401 - as above
    """Return the runnable commands by path, without hidden ones.

    A group is included if it runs without a subcommand.
    """
    children: dict[str, Any] = getattr(command, "commands", None) or {}
    found: dict[str, Any] = {} if children and not command.invoke_without_command else {path: command}
    for name, child in children.items():
        if not child.hidden:
            found |= list_commands(child, f"{path} {name}")
    return found


app = typer.Typer(rich_markup_mode=None, add_completion=False)


@app.command()
def help_(
    ctx: typer.Context,
    words: Annotated[
        list[str] | None, typer.Argument(metavar="[COMMAND]...", help="Command, or `advanced`. Default: all.")
    ] = None,
) -> None:
    """Show help for a command."""
    root = ctx.find_root()
    if words == [ADVANCED.lower()]:
        formatter = ctx.make_formatter()
        write_section(formatter, ADVANCED)
        write_text(formatter.getvalue())
        return
    # In standalone mode Click would print errors itself and end the process.
    root.command.main(args=[*(words or []), "--help"], prog_name=root.info_name, complete_var="", standalone_mode=False)
