"""`agent --server URL …`: the commands and options that work on a server."""

import copy
import functools
import sys
from collections.abc import Sequence
from typing import Annotated, Any

import anyio
import typer
from typer.main import get_command

from metier.cli.root import load_command
from metier.cli.run.driver import View, run_in_background
from metier.cli.shared.command_options import Quiet, get_server_url, using_server
from metier.cli.shared.output import warn_line, write_line
from metier.cli.shared.server_client import open_server
from metier.errors import UsageError
from metier.runtime.run_access import Runs

_LIMITS = frozenset({"agent", "model", "provider", "profile", "max_turns", "max_cost_usd", "dry_run", "detach"})
_SHOWN = frozenset({"output_format", "as_json", "quiet", "verbose", "events"})
COMMANDS: dict[str, frozenset[str]] = {
    "run": _LIMITS | _SHOWN | {"task", "prompt", "task_file", "output_schema"},
    "resume": _SHOWN | {"run", "inputs", "answer", "max_turns", "max_cost_usd", "token", "accept_changed_skills"},
    "task list": frozenset({"as_json"}),
    "task show": frozenset({"task", "as_json"}),
    "task run": _LIMITS | _SHOWN | {"task", "inputs", "input_file"},
    "runs list": frozenset({"status", "limit", "as_json"}),
    "runs show": frozenset({"run", "as_json"}),
    "runs watch": frozenset({"run", "verbose", "events", "as_json"}),
    "runs cancel": frozenset({"run", "as_json"}),
    "runs export": frozenset({"run", "output", "as_json"}),
    "approvals list": frozenset({"every", "run", "as_json"}),
    "approvals show": frozenset({"approval", "as_json"}),
    "approve": frozenset({"approval", "edit_args", "reason", "as_json"}),
    "deny": frozenset({"approval", "reason", "as_json"}),
    "chat": frozenset({"context", "agent", "model", "quiet"}),
}
"""The commands, with their parameters: others concern files or processes of this machine."""
_ALIASES = {
    "approvals approve": ["approve"],
    "approvals deny": ["deny"],
    "runs answer": ["resume"],
}


def invoke_on_server(url: str, args: Sequence[str]) -> int:
    """Run a command line on the server at this URL."""
    words = list(args)
    for alias, meant in _ALIASES.items():
        if words[: len(alias.split())] == alias.split():
            words[: len(alias.split())] = meant
    name = next((name for name in COMMANDS if words[: len(name.split())] == name.split()), None)
    if name is None:
        if words[:1] in ([], ["-h"], ["--help"]):
            for each in COMMANDS:
                write_line(f"agent --server URL {each}")
            return 0
        raise UsageError(
            f"`agent {' '.join(words[:2])}` does not run on a server", hint=f"Use one of: {', '.join(COMMANDS)}"
        )
    command, rest = _get_command(name), words[len(name.split()) :]
    with using_server(url):
        result: object = command.main(args=rest, prog_name=f"agent --server URL {name}", standalone_mode=False)
    return result if isinstance(result, int) else 0


def _get_command(name: str) -> Any:  # noqa: ANN401 - Typer does not export the type of its commands
    """Return the local command without the parameters that a server does not take."""
    group, _, part = name.partition(" ")
    loaded: Any = get_command(chat_app) if name == "chat" else load_command(group)
    # Commands are cached, so the local one must not lose its parameters.
    command: Any = copy.copy(loaded.commands[part] if part else loaded)
    offered = [each for each in command.params if each.name in COMMANDS[name] or "--help" in each.opts]
    # Typer remembers the values of an earlier call in this process, so the other parameters get their defaults here.
    defaults = {each.name: each.default for each in command.params if each not in offered}
    command.params, command.callback = offered, functools.partial(command.callback, **defaults)
    return command


chat_app = typer.Typer(rich_markup_mode=None, add_completion=False)


@chat_app.command()
def chat(
    *,
    context: Annotated[str, typer.Option("--context", help="Name of the conversation.")] = "",
    agent: Annotated[str, typer.Option("--agent", help="Agent ID.")] = "",
    model: Annotated[str, typer.Option("--model", help="Model, or provider/model.")] = "",
    quiet: Quiet = False,
) -> int:
    """Chat with an agent of the server. An empty line exits."""

    async def open_conversation() -> str:
        async with open_server(get_server_url()) as server:
            made = await server.post("/conversations", {"name": context, "agent": agent, "model": model})
            return str(made["context_id"])

    name, code = anyio.run(open_conversation), 0
    warn_line(f"chat:    {name}; an empty line exits")

    async def send(_runs: Runs) -> str:
        async with open_server(get_server_url()) as server:
            return str((await server.post(f"/conversations/{name}/messages", {"text": line}))["run_id"])

    while line := _read_line():
        code = run_in_background(send, View(quiet=quiet), detaches=False)
    return code


def _read_line() -> str:
    if sys.stdin.isatty():
        sys.stderr.write("> ")
        sys.stderr.flush()
    return sys.stdin.readline().strip()
