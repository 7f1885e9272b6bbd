"""The commands of a chat: what a line that begins with `/` or `!` does. `looking` shows, `changing` changes something.

Each command is one function; the table is at the end.
"""

from collections.abc import Awaitable, Callable
from typing import NamedTuple

from metier.cli.chat import changing, looking
from metier.cli.chat.desk import Desk, Leave
from metier.cli.shared.output import write_line
from metier.definitions.nearest import hint_nearest
from metier.errors import UsageError
from metier.runtime.chat.chats import Chat
from metier.runtime.chat.commands import check_trusted, list_own_commands


class Command(NamedTuple):
    summary: str
    run: Callable[[Desk, str], Awaitable[None]]
    takes: str = ""
    is_free: bool = False
    """It only looks, so it can be used while a turn runs."""


async def run_command(desk: Desk, line: str) -> None:
    """Raises `Leave`, and `UsageError` for a command that is not there."""
    name, _, rest = line.removeprefix("/").partition(" ")
    command = COMMANDS.get(ALIASES.get(name, name))
    if command is not None:
        await command.run(desk, rest.strip())
        return
    place = desk.chat.runtime.place
    own = list_own_commands(place)
    if name in own:
        message = own[name].fill(rest.strip())
        await desk.drive(lambda watch: desk.chat.send(message, watch, is_typed=False))
        return
    check_trusted(place, name)
    hint = hint_nearest(name, (*COMMANDS, *own)) or "`/help` lists the commands; begin with `//` to say a slash"
    raise UsageError(f"There is no command '/{name}'", hint=hint)


def runs_at_once(line: str) -> bool:
    """True for a command that need not wait for the turn under way."""
    name = line.strip().removeprefix("/").partition(" ")[0]
    command = COMMANDS.get(ALIASES.get(name, name))
    return line.startswith("/") and not line.startswith("//") and command is not None and command.is_free


def list_commands(chat: Chat) -> list[tuple[str, str]]:
    """Names and summaries, those of the workspace last."""
    own = list_own_commands(chat.runtime.place)
    listed = [(name, command.summary) for name, command in COMMANDS.items()]
    return listed + [(name, command.description) for name, command in own.items() if name not in COMMANDS]


async def _help(desk: Desk, _: str) -> None:
    for name, command in COMMANDS.items():
        usage = f"/{name} {command.takes}".rstrip()
        write_line(f"{usage:<24} {command.summary}")
    own = list_own_commands(desk.chat.runtime.place)
    for name, command in own.items():
        write_line(f"{f'/{name}':<24} {command.description}")
    write_line()
    for line in KEYS:
        write_line(line)


async def _quit(_: Desk, __: str) -> None:
    raise Leave


KEYS = (
    "Enter sends. Esc-Enter, or a backslash at the end of a line, begins a new line.",
    "Ctrl-G opens your editor, Ctrl-R searches earlier messages, Ctrl-Z suspends the program.",
    "Shift-Tab changes the permission mode: ask, accept edits, plan, auto.",
    "Esc or Ctrl-C stops the turn, Ctrl-D leaves.",
    "Ctrl-O shows the last step in full; once more, the one before it.",
    "`!command` runs a command of yours, `@path` completes a file.",
    "What you send while a turn runs waits for its end; commands that only show do not.",
    "A message that begins with // begins with a slash.",
)
COMMANDS: dict[str, Command] = {
    "help": Command("Show this.", _help, is_free=True),
    "model": Command("Show the models that may answer, or choose one.", changing.choose_model, "[name]"),
    "agent": Command("Show the agents here, or talk to another.", changing.choose_agent, "[name]"),
    "skills": Command("List the skills of the agent.", looking.show_skills, "[name]", is_free=True),
    "tools": Command("List the tools of the agent with their risk.", looking.show_tools, "[name]", is_free=True),
    "cost": Command("Show what this conversation used and cost.", looking.show_cost, "[model|skill|day]", is_free=True),
    "context": Command("Show what fills the window of the model.", looking.show_context, is_free=True),
    "compact": Command("Sum up what was said so far, to make room.", changing.compact),
    "clear": Command("Begin a new conversation; this one stays.", changing.clear),
    "undo": Command("Take the last turn back: the talk, its files, or both.", changing.undo, "[talk|files|both]"),
    "approve": Command("Decide what waits for your approval, and go on.", changing.approve, "[id]"),
    "continue": Command("Go on with a turn that was stopped.", changing.go_on),
    "permissions": Command(
        "Show what is asked about and why, or choose a permission mode.",
        looking.show_permissions,
        "[mode]",
        is_free=True,
    ),
    "mcp": Command("Show the external tool servers.", looking.show_servers, is_free=True),
    "resume": Command("List the conversations, or go on with another.", changing.resume, "[number|id]"),
    "facts": Command("Show the facts that are kept in full.", looking.show_facts, is_free=True),
    "remember": Command("Keep a fact.", changing.remember, "[name:] fact"),
    "forget": Command("Drop a fact.", changing.forget, "name"),
    "export": Command("Write the conversation as Markdown.", changing.export, "[file]"),
    "quit": Command("Leave; the conversation stays.", _quit, is_free=True),
}
ALIASES = {"exit": "quit", "q": "quit", "?": "help", "approvals": "approve", "new": "clear", "usage": "cost"}
