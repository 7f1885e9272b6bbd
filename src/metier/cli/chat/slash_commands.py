"""The commands of a chat: what a line that begins with `/` does. Each is one function; the table is at the end."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from metier.cli.chat.export import render_markdown
from metier.cli.shared.output import warn_line, write_line
from metier.definitions.nearest import hint_nearest
from metier.engine.state import RunState
from metier.errors import UsageError
from metier.runtime.chat.chats import Chat
from metier.runtime.runs import Asker, Watch

type Turn = Callable[[Watch], Awaitable[RunState | None]]
"""Something that drives a turn; nothing comes of it where there is none to drive."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Desk:
    """What a command may use."""

    chat: Chat
    ask: Asker
    drive: Callable[[Turn], Awaitable[None]]


class Command(NamedTuple):
    summary: str
    run: Callable[[Desk, str], Awaitable[None]]
    takes: str = ""


class Leave(Exception):
    """The person wants to go."""


async def run_command(desk: Desk, line: str) -> None:
    """Raises `Leave`, and `UsageError` for a command that is not there."""
    name, _, rest = line.removeprefix("/").partition(" ")
    command = COMMANDS.get(ALIASES.get(name, name))
    if command is None:
        hint = hint_nearest(name, tuple(COMMANDS)) or "`/help` lists the commands; begin with `//` to say a slash"
        raise UsageError(f"There is no command '/{name}'", hint=hint)
    await command.run(desk, rest.strip())


async def _help(_: Desk, __: str) -> None:
    for name, command in COMMANDS.items():
        usage = f"/{name} {command.takes}".rstrip()
        write_line(f"{usage:<22} {command.summary}")
    write_line()
    write_line("Enter sends. Esc-Enter, or a backslash at the end of a line, begins a new line.")
    write_line("Ctrl-C stops the turn, Ctrl-D leaves. A message that begins with // begins with a slash.")


async def _skills(desk: Desk, name: str) -> None:
    packages = desk.chat.resolve().packages
    chosen = [package for package in packages if package.definition.name.startswith(name)]
    if name and not chosen:
        known = [package.definition.name for package in packages]
        raise UsageError(f"No skill is called {name!r}", hint=hint_nearest(name, known) or "`/skills` lists them")
    for package in chosen:
        write_line(f"{package.definition.name:<22} {' '.join(package.definition.description.split())}")
    if not packages:
        warn_line("This agent has no skills")


async def _model(desk: Desk, name: str) -> None:
    if name:
        await desk.chat.use_model(name)
        warn_line(f"The next turn is answered by {name}")
        return
    current = desk.chat.answered_by
    for choice in desk.chat.list_models():
        write_line(f"{'*' if choice == current else ' '} {choice}")


async def _approve(desk: Desk, approval: str) -> None:
    found = [each for each in await desk.chat.find_approvals() if each.row.approval_id.startswith(approval)]
    if not found:
        warn_line("Nothing waits for a decision in this conversation")
        return
    for question in found:
        reply = await desk.ask(question)
        if reply is None:
            warn_line("Left undecided")
            return
        await desk.chat.runtime.approvals.decide(question, reply)
    await desk.drive(lambda watch: desk.chat.go_on(watch=watch))


async def _continue(desk: Desk, _: str) -> None:
    if await desk.chat.find_open_turn() is None and await desk.chat.find_reopenable() is None:
        warn_line("The last turn has ended; there is nothing to go on with")
        return
    await desk.drive(lambda watch: desk.chat.go_on(watch=watch))


async def _undo(desk: Desk, _: str) -> None:
    turn = await desk.chat.undo()
    warn_line(f"Taken back: {' '.join(turn.said.split())[:80]} (its journal stays, run {turn.run_id})")


async def _facts(desk: Desk, _: str) -> None:
    facts = await desk.chat.list_facts()
    for fact in facts:
        write_line(f"{fact.key}: {fact.text}{'' if fact.is_own else '  (told by the way)'}")
    if not facts:
        warn_line("No facts are kept yet; `/remember name: fact` keeps one")


async def _remember(desk: Desk, text: str) -> None:
    fact = await desk.chat.remember(text)
    warn_line(f"Kept as {fact.key!r}")


async def _forget(desk: Desk, key: str) -> None:
    await desk.chat.forget(key)
    warn_line(f"Forgotten: {key}")


async def _export(desk: Desk, name: str) -> None:
    text = await render_markdown(desk.chat)
    if not name:
        write_line(text)
        return
    try:
        _write_new(Path(name), text)
    except FileExistsError as error:
        raise UsageError(f"File {name!r} is there already", hint="Name another one") from error
    except OSError as error:
        raise UsageError(f"File {name!r} cannot be written: {error.strerror}") from error
    warn_line(f"Written to {name}")


def _write_new(file: Path, text: str) -> None:
    with file.expanduser().open("x", encoding="utf-8") as opened:
        opened.write(text + "\n")


async def _quit(_: Desk, __: str) -> None:
    raise Leave


COMMANDS: dict[str, Command] = {
    "help": Command("Show this.", _help),
    "skills": Command("List the skills of the agent.", _skills, "[name]"),
    "model": Command("Show the models that may answer, or choose one.", _model, "[name]"),
    "approve": Command("Decide what waits for your approval, and go on.", _approve, "[id]"),
    "continue": Command("Go on with a turn that was stopped.", _continue),
    "undo": Command("Take the last turn back.", _undo),
    "facts": Command("Show what is kept in full, however long the conversation gets.", _facts),
    "remember": Command("Keep a fact.", _remember, "[name:] fact"),
    "forget": Command("Drop a fact.", _forget, "name"),
    "export": Command("Write the conversation as Markdown, to the screen or a file.", _export, "[file]"),
    "quit": Command("Leave; the conversation stays.", _quit),
}
ALIASES = {"exit": "quit", "q": "quit", "?": "help", "approvals": "approve"}
