"""The root of the command line: a table of commands, each imported when it is called."""

import copy
import functools
import importlib
import os
import shlex
import sys
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, NamedTuple, TextIO, override

import typer
from typer.core import TyperCommand, TyperGroup
from typer.main import get_command

from metier.errors import UsageError
from metier.version import __version__

COMPLETION_VARIABLE = "_AGENT_COMPLETE"
_HELP = frozenset({"-h", "--help"})
BROKEN_PIPE_EXIT_CODE = 141
"""The exit code that a shell reports for a process ended by SIGPIPE."""


class LazyCommand(NamedTuple):
    """A command whose module is imported when it is called; until then its name and summary are enough."""

    module: str
    """A module with a Typer called `app`, relative to `metier.cli` unless it starts with `metier.`."""
    summary: str
    section: str = ""
    """The heading in the list of commands. Aliases have none: they are not listed."""
    subcommand: str = ""
    """The command of the module's group that this one is short for."""
    parts: Mapping[str, str] = {}
    """Modules with a single command of the group.

    Importing only this one saves a third to two thirds of the CPU time of `agent runs list` and similar commands.
    """


_START, _HISTORY, _PERMISSIONS, _DEFINITIONS, _BACKGROUND, _SETUP = (
    "Getting started",
    "History",
    "Permissions",
    "Agents, skills and tools",
    "Background",
    "Setup",
)
ADVANCED = "Advanced"

_ROUTE = {"route": "skill.route"}

COMMANDS: dict[str, LazyCommand] = {
    "init": LazyCommand("init", "Create a starter workspace", _START),
    "run": LazyCommand("run.command", "Run a task", _START),
    "chat": LazyCommand("chat.command", "Start or continue a conversation", _START),
    "resume": LazyCommand("run.resume", "Resume a paused or interrupted run", _START),
    "task": LazyCommand("task", "List, show and run task definitions", _START, parts={"list": "list_tasks"}),
    "runs": LazyCommand(
        "runs.command", "List, show, watch and manage runs", _HISTORY, parts={"list": "runs.list_runs"}
    ),
    "undo": LazyCommand("undo", "Undo a run's file changes", _HISTORY),
    "cost": LazyCommand("cost", "Show token usage and cost", _HISTORY),
    "approvals": LazyCommand("approvals", "List and show approvals", _PERMISSIONS, parts={"list": "list_approvals"}),
    "approve": LazyCommand("approvals", "Approve a pending call", _PERMISSIONS, "approve"),
    "deny": LazyCommand("approvals", "Deny a pending call", _PERMISSIONS, "deny"),
    "trust": LazyCommand("trust", "Trust the files of a cloned workspace", _PERMISSIONS),
    "agents": LazyCommand("agents", "List and show agents", _DEFINITIONS),
    "skills": LazyCommand("skill.group", "List, add, trust and manage skills", _DEFINITIONS, parts=_ROUTE),
    "mcp": LazyCommand("mcp", "Manage MCP servers, or serve this workspace", _DEFINITIONS),
    "schedule": LazyCommand("schedule", "Manage scheduled runs", _BACKGROUND),
    "serve": LazyCommand("metier.server.command", "Serve the HTTP API and the web console", _BACKGROUND),
    "config": LazyCommand("config", "Create, change and show settings", _SETUP),
    "check": LazyCommand("check", "Check settings, skills, agents, tasks and rules", _SETUP),
    "doctor": LazyCommand("doctor", "Diagnose the installation", _SETUP),
    "fork": LazyCommand("runs.replay", "Start a new run from a point of an earlier one", ADVANCED, "fork"),
    "replay": LazyCommand("runs.replay", "Replay a run without effects", ADVANCED, "replay"),
    "eval": LazyCommand("eval", "Evaluate skills, agents and tasks", ADVANCED),
    "policy": LazyCommand("policy", "Explain and backtest permission rules", ADVANCED),
    "prompt": LazyCommand("prompt", "Show the prompt sent to the model", ADVANCED),
    "worker": LazyCommand("metier.worker.command", "Start a worker for background runs", ADVANCED),
    "notify": LazyCommand("notify", "List and send notifications", ADVANCED),
    "plugins": LazyCommand("plugins", "List installed plugins", ADVANCED),
    "acp": LazyCommand("metier.protocols.acp.command", "Serve an editor over the Agent Client Protocol", ADVANCED),
    "redact": LazyCommand("redact", "Redact secrets in a text", ADVANCED),
    "completion": LazyCommand("completion", "Print a shell completion script", ADVANCED),
    "help": LazyCommand("help", "Show help for a command", ADVANCED),
    "version": LazyCommand("version", "Show the version", ADVANCED),
    "skill": LazyCommand("skill.group", "Alias of `agent skills`", parts=_ROUTE),
    "validate": LazyCommand("check", "Alias of `agent check workspace`", subcommand="workspace"),
}
ALIASES = {"skill": "skills", "validate": "check workspace"}
"""Earlier names. They keep working; help, completion and the reference omit them."""


class LazyGroup(TyperGroup):
    """A group that lists commands from the table and imports a command only when it is called."""

    _is_completing = False
    """Set while the shell completes command names: that needs their summaries but not their modules."""

    @override
    def list_commands(self, ctx: typer.Context) -> list[str]:  # pyright: ignore[reportIncompatibleMethodOverride]
        return [name for name in COMMANDS if name not in ALIASES]

    @override
    def get_command(self, ctx: typer.Context, cmd_name: str) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
        if self._is_completing:
            return TyperCommand(cmd_name, short_help=COMMANDS[cmd_name].summary)
        return load_command(cmd_name)

    @override
    def resolve_command(self, ctx: typer.Context, args: list[str]) -> tuple[str | None, Any, list[str]]:  # pyright: ignore[reportIncompatibleMethodOverride]
        name = args[0]
        command = load_part(args) or self.get_command(ctx, name)
        # Click reports unknown options. During completion it parses unfinished words, which are no errors.
        if command is None and not name.startswith("-") and not ctx.resilient_parsing:
            raise UsageError(f"No such command {name!r}", hint=_hint_command(name))
        if command is not None and (len(args) == 1 or _HELP & set(args)):
            # Imported only for help, because the texts are read from a file.
            importlib.import_module("metier.cli.help").dress(command, f"agent {ALIASES.get(name, name)}")
        return super().resolve_command(ctx, args) if command is None else (name, command, args[1:])

    @override
    def invoke(self, ctx: typer.Context) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
        try:
            return super().invoke(ctx)
        except BrokenPipeError:
            # Typer would exit with 1, as if the command had failed. Only the reader of its output is gone. Without a
            # stdout, Python has nothing to flush at its end, where it would report the broken pipe again.
            sys.stdout = None
            return BROKEN_PIPE_EXIT_CODE

    @override
    def shell_complete(self, ctx: typer.Context, incomplete: str) -> list[Any]:  # pyright: ignore[reportIncompatibleMethodOverride]
        self._is_completing = True
        return super().shell_complete(ctx, incomplete)

    @override
    def format_commands(self, ctx: typer.Context, formatter: Any) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]
        sections = dict.fromkeys(lazy.section for lazy in COMMANDS.values() if lazy.section not in ("", ADVANCED))
        for section in sections:
            write_section(formatter, section)


def _hint_command(name: str) -> str:
    """Suggest to run a task, a subcommand of this name (`agent runs watch` for `watch`), or a similar command."""
    if " " in name.strip():
        return f"To run a task, use `agent run {shlex.quote(name)}`"
    paths: Mapping[str, object] = importlib.import_module("metier.cli.help").load_texts()
    if same := [path for path in paths if path.endswith(f" {name}")]:
        return f"Did you mean {' or '.join(f'`{path}`' for path in same)}?"
    nearest: str = importlib.import_module("metier.definitions.nearest").hint_nearest(name, COMMANDS)
    return nearest or "Run `agent --help` to list the commands"


def write_section(formatter: Any, section: str) -> None:  # noqa: ANN401 - Typer does not export the formatter's type
    """Write a section of the list of commands."""
    with formatter.section(section):
        formatter.write_dl([(name, lazy.summary) for name, lazy in COMMANDS.items() if lazy.section == section])


def load_command(name: str) -> Any:  # noqa: ANN401 - Typer does not export the type of its commands
    """Import and return a command. Returns None if neither Metier nor a plugin has it."""
    lazy = COMMANDS.get(name)
    if lazy is None:
        return _load_plugin_command(name)
    return _import_command(name, lazy.module, lazy.subcommand)


def load_part(args: Sequence[str]) -> Any:  # noqa: ANN401 - as above
    """Return the called group with only the called command, or None if the whole group is needed."""
    lazy = COMMANDS.get(args[0])
    if lazy is None or len(args) < 2 or args[1] not in lazy.parts or _HELP & set(args):
        return None
    return _import_command(args[0], lazy.parts[args[1]])


@functools.cache
def _import_command(name: str, module: str, subcommand: str = "") -> Any:  # noqa: ANN401 - as above
    """Cached: a program that calls several commands builds each of them once."""
    command: Any = get_command(
        importlib.import_module(module if module.startswith("metier.") else f"metier.cli.{module}").app
    )
    if subcommand:
        # Copied, because the group may hide its own command of this name.
        command = copy.copy(command.commands[subcommand])
        command.hidden = False
    command.name = name
    return command


def _load_plugin_command(name: str) -> Any:  # noqa: ANN401 - as above
    """Plugins are loaded only if the user calls a command that Metier does not have."""
    app: Any = importlib.import_module("metier.cli.plugins").find_app(name)
    if app is None:
        return None
    command: Any = get_command(app)
    command.name = name
    return command


app = typer.Typer(
    cls=LazyGroup,
    rich_markup_mode=None,
    add_completion=False,
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"]},
    help="A durable agent runtime. Agents, skills and tasks are Markdown files.\n\n"
    "Run `agent` with no arguments to start a chat. The first time, it asks you to choose a model provider.",
    epilog="Run `agent help COMMAND` for examples and `agent help advanced` for more commands.",
)


@app.callback()
def root(
    prompt: Annotated[  # noqa: ARG001
        str | None, typer.Option("-p", "--prompt", help="Task to run, same as `agent run TASK`.")
    ] = None,
    version: Annotated[bool, typer.Option("--version", help="Show the version and exit.")] = False,
    check: Annotated[bool, typer.Option("--check", help="Same as `agent check`.")] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Show tracebacks of errors.")] = False,  # noqa: ARG001
    server: Annotated[
        str | None, typer.Option("--server", help="URL of a Metier server to run the command on.")
    ] = None,
) -> None:
    """Handle options before the command. `main.run` handles `--debug`; `invoke` handles `-p` and `--check`."""
    if check:
        raise UsageError("--check must be the first argument", hint="Run `agent check`, followed by its options")
    if server is not None:
        raise UsageError("--server must come before the command", hint="Use `agent --server URL run …`")
    if version:
        typer.echo(f"agent {__version__}")
        raise typer.Exit


def _is_terminal(stream: TextIO | None) -> bool:
    """Return whether the stream is a terminal. It is None if the caller closed it."""
    return stream is not None and not stream.closed and stream.isatty()


def _name_command(args: Sequence[str]) -> list[str]:
    """Insert the implied command: `agent -p TASK --model M` is `agent run -p TASK --model M`."""
    if set(args) in ({"--version", "--verbose"}, {"--version", "-v"}):
        return ["version", "--verbose"]
    is_prompt = bool(args) and args[0].startswith("-") and any(arg.split("=")[0] in ("-p", "--prompt") for arg in args)
    return ["run", *args] if is_prompt else list(args)


def _invoke_remote(args: Sequence[str]) -> int:
    """Run the command on a server: `agent --server URL run …`."""
    _, equals, url = args[0].partition("=")
    rest = list(args[1:])
    if not equals:
        url = rest.pop(0) if rest else ""
    if not url:
        raise UsageError("--server needs the URL of a server", hint="For example, --server http://127.0.0.1:8321")
    return importlib.import_module("metier.cli.remote").invoke_on_server(url, rest)


def invoke(args: Sequence[str]) -> int:
    """Run the command line and return its exit code. Errors are raised."""
    if COMPLETION_VARIABLE in os.environ:
        # Typer registers its shells only for apps that offer to install completion themselves.
        importlib.import_module("typer.completion").completion_init()
    if not args and _is_terminal(sys.stdin) and _is_terminal(sys.stderr):
        return importlib.import_module("metier.cli.first_run_dialog").start()
    if args and args[0].partition("=")[0] == "--server":
        return _invoke_remote(args)
    words = ["check", *args[1:]] if list(args[:1]) == ["--check"] else list(args)
    # Not standalone: Typer would print errors in its own words and exit with its own codes; `main.run` does both.
    result: object = get_command(app).main(
        args=_name_command(words), prog_name="agent", complete_var=COMPLETION_VARIABLE, standalone_mode=False
    )
    return result if isinstance(result, int) else 0
