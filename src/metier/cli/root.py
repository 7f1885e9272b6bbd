"""The root of the command line: a table of commands, each imported when it runs and not before."""

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
READER_LEFT = 141
"""What a shell makes of a process that SIGPIPE ended."""


class Lazy(NamedTuple):
    """A command that is known by name and one line until the user calls it."""

    module: str
    """A module with a Typer called `app`, below `metier.cli` unless it begins with `metier.`."""
    summary: str
    section: str = "More"
    """The heading under which the list of commands has it."""
    parts: Mapping[str, str] = {}
    """Commands of a group that are called often, each with a module whose `app` has this one only."""


_WORK, _SEE, _MAY, _KNOWS, _HEALTH = (
    "Begin and work",
    "See what happened",
    "Decide what may happen",
    "Agents, skills, tasks",
    "Settings and health",
)

_ROUTE = {"route": "skill.route"}

COMMANDS: dict[str, Lazy] = {
    "init": Lazy("init", "Write a small workspace to begin with: agent, skills, task, rules.", _WORK),
    "run": Lazy("run.command", "Give a task to an agent, and watch it work.", _WORK),
    "chat": Lazy("chat.command", "Talk to an agent, and go on with earlier conversations.", _WORK),
    "task": Lazy(
        "task.command",
        "List, show, check and run the task definitions of the workspace.",
        _WORK,
        {"list": "task.list_tasks"},
    ),
    "resume": Lazy("run.resume", "Go on with a run: after an answer, an approval, a signal or a crash.", _WORK),
    "worker": Lazy("metier.worker.command", "Drive runs that were left to workers, until you stop it.", _WORK),
    "serve": Lazy("metier.server.command", "Serve the HTTP API and the web console, until you stop it.", _WORK),
    "schedule": Lazy("schedule", "Give work to an agent at set times: add, list, show, pause, remove, run now.", _WORK),
    "runs": Lazy(
        "runs.command",
        "List, show, watch, cancel, export, compare and delete runs.",
        _SEE,
        {"list": "runs.list_runs"},
    ),
    "replay": Lazy("runs.replay", "Show a run again, drive it again without effects, or fork it.", _SEE),
    "undo": Lazy("undo", "Make files what they were before a run, or before one of its steps.", _SEE),
    "cost": Lazy("cost", "Say what runs used and cost, by model, agent, skill, task or day.", _SEE),
    "eval": Lazy("eval.command", "Run the evals of skills, agents and tasks; try a change on past runs.", _SEE),
    "prompt": Lazy("prompt", "Show what a model is told: every layer, its source, its hash and its cost.", _SEE),
    "approvals": Lazy(
        "approvals.command",
        "List, show and decide what waits for an approval.",
        _MAY,
        {"list": "approvals.list_approvals"},
    ),
    "notify": Lazy("notify", "List the messages that tell of approvals and ends, and send those that are left.", _MAY),
    "policy": Lazy("policy", "Explain, test and backtest the rules about what may happen.", _MAY),
    "trust": Lazy("trust", "Trust what this cloned folder brings: settings, rules, agents, tasks, skills.", _MAY),
    "agents": Lazy("agents", "List the agents of the workspace, and show what each may use.", _KNOWS),
    "skills": Lazy(
        "skill.group", "Say which skills can be used here; add, enable, trust, test and remove them.", _KNOWS, _ROUTE
    ),
    "skill": Lazy("skill.group", "The same as `agent skills`.", _KNOWS, _ROUTE),
    "mcp": Lazy("mcp", "Add and accept external tool servers (MCP); serve this workspace to MCP clients.", _KNOWS),
    "acp": Lazy("metier.doors.acp.command", "Talk to an editor by the Agent Client Protocol.", _WORK),
    "plugins": Lazy("plugins", "Show which plugins are installed, what each adds, and why one is off.", _KNOWS),
    "check": Lazy("check", "Check everything here: settings, skills, agents, tasks, rules. Calls no model.", _HEALTH),
    "config": Lazy("config", "Write, change, check and show the settings.", _HEALTH),
    "doctor": Lazy(
        "doctor.command", "Say what is installed, which keys are set, what works here and what to do next.", _HEALTH
    ),
    "validate": Lazy("validate", "Check what a project defines, and that what it names exists.", _HEALTH),
    "redact": Lazy("redact", "Show text as the log would: without secrets, without control characters.", _HEALTH),
    "completion": Lazy("completion", "Print the completion script of a shell.", _HEALTH),
    "help": Lazy("help.command", "Show how a command is called, what it does, and examples.", _HEALTH),
    "version": Lazy("help.version", "Show the version of Metier.", _HEALTH),
}
ALIASES = {"skill": "skills"}
"""Other names; lists and the reference leave them out."""


class LazyGroup(TyperGroup):
    """Lists commands from the table and imports one only when it is called."""

    _is_completing = False
    """The names of commands are completed: each needs its summary, and not its module."""

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
        if command is None and not name.startswith("-") and not ctx.resilient_parsing:
            nearest = importlib.import_module("metier.definitions.nearest").hint_nearest(name, COMMANDS)
            task = f"To give the agent a task, run `agent run {shlex.quote(name)}`" if " " in name.strip() else ""
            raise UsageError(f"No such command {name!r}", hint=task or nearest or "`agent --help` lists the commands")
        if command is not None and (len(args) == 1 or _HELP & set(args)):
            # Not before help is asked for: its texts are a file of their own.
            importlib.import_module("metier.cli.help.help_texts").dress(command, f"agent {ALIASES.get(name, name)}")
        return super().resolve_command(ctx, args) if command is None else (name, command, args[1:])

    @override
    def invoke(self, ctx: typer.Context) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
        try:
            return super().invoke(ctx)
        except BrokenPipeError:
            # Typer would end with 1 here, as if the command had failed; its reader left.
            sys.stdout = None
            return READER_LEFT

    @override
    def shell_complete(self, ctx: typer.Context, incomplete: str) -> list[Any]:  # pyright: ignore[reportIncompatibleMethodOverride]
        self._is_completing = True
        return super().shell_complete(ctx, incomplete)

    @override
    def format_commands(self, ctx: typer.Context, formatter: Any) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]
        sections: dict[str, list[tuple[str, str]]] = {}
        for name, lazy in COMMANDS.items():
            if name not in ALIASES:
                sections.setdefault(lazy.section, []).append((name, lazy.summary))
        for title, rows in sections.items():
            with formatter.section(title):
                formatter.write_dl(rows)


def load_command(name: str) -> Any:  # noqa: ANN401 - Typer does not export the type of its commands
    """The command of that name, its module imported now."""
    lazy = COMMANDS.get(name)
    if lazy is None:
        return _load_plugin_command(name)
    return _import_command(name, lazy.module)


def load_part(args: Sequence[str]) -> Any:  # noqa: ANN401 - as above
    """The group that a call names, with the called command alone; nothing where its other commands are needed too."""
    lazy = COMMANDS.get(args[0])
    if lazy is None or len(args) < 2 or args[1] not in lazy.parts or _HELP & set(args):
        return None
    return _import_command(args[0], lazy.parts[args[1]])


@functools.cache
def _import_command(name: str, module: str) -> Any:  # noqa: ANN401 - as above
    """Kept: a program that calls several commands builds each once."""
    command: Any = get_command(
        importlib.import_module(module if module.startswith("metier.") else f"metier.cli.{module}").app
    )
    command.name = name
    return command


def _load_plugin_command(name: str) -> Any:  # noqa: ANN401 - as above
    """Plugins cost nothing until the user names a command that is not ours."""
    app: Any = importlib.import_module("metier.cli.shared.plugin_command").find_app(name)
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
    help="A skill-native agent runtime. Agents, skills and tasks are Markdown; a run is its journal.\n\n"
    "Run `agent` with no arguments to start a chat. The first time, it asks you to choose a model provider. "
    "`agent help COMMAND` shows examples.",
)


@app.callback()
def root(
    prompt: Annotated[  # noqa: ARG001
        str | None, typer.Option("-p", "--prompt", help="A task: `agent -p TASK …` is `agent run TASK …`.")
    ] = None,
    version: Annotated[bool, typer.Option("--version", help="Show the version and leave.")] = False,
    check: Annotated[bool, typer.Option("--check", help="The same as `agent check`.")] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")] = False,  # noqa: ARG001
    server: Annotated[
        str | None,
        typer.Option("--server", help="Work against the server at this address: run, runs, approvals, chat, task."),
    ] = None,
) -> None:
    """`--debug` is taken by `main.run`, before anything can fail; `-p` and a leading `--check` by `invoke`."""
    if check:
        raise UsageError("--check stands alone", hint="Write `agent check`, and its options after it")
    if server is not None:
        raise UsageError("--server stands before the command", hint="Write `agent --server URL run …`")
    if version:
        typer.echo(f"agent {__version__}")
        raise typer.Exit


def _is_terminal(stream: TextIO | None) -> bool:
    """A stream that the caller closed is missing."""
    return stream is not None and not stream.closed and stream.isatty()


def _name_command(args: Sequence[str]) -> list[str]:
    """`agent -p TASK --model M` is `agent run -p TASK --model M`: with all of its options, in any order."""
    if set(args) in ({"--version", "--verbose"}, {"--version", "-v"}):
        return ["version", "--verbose"]
    is_prompt = bool(args) and args[0].startswith("-") and any(arg.split("=")[0] in ("-p", "--prompt") for arg in args)
    return ["run", *args] if is_prompt else list(args)


def _invoke_remote(args: Sequence[str]) -> int:
    """`agent --server URL run …`: the same words, against a server."""
    _, equals, url = args[0].partition("=")
    rest = list(args[1:])
    if not equals:
        url = rest.pop(0) if rest else ""
    if not url:
        raise UsageError("--server needs the address of a server", hint="Write it like http://127.0.0.1:8321")
    return importlib.import_module("metier.cli.remote.command").invoke_remote(url, rest)


def invoke(args: Sequence[str]) -> int:
    """Run the command line; the exit code of the command, errors as exceptions."""
    if COMPLETION_VARIABLE in os.environ:
        # Typer registers its shells only for apps that offer to install completion themselves.
        importlib.import_module("typer.completion").completion_init()
    if not args and _is_terminal(sys.stdin) and _is_terminal(sys.stderr):
        return importlib.import_module("metier.cli.first_run_dialog").start()
    if args and args[0].partition("=")[0] == "--server":
        return _invoke_remote(args)
    words = ["check", *args[1:]] if list(args[:1]) == ["--check"] else list(args)
    result: object = get_command(app).main(
        args=_name_command(words), prog_name="agent", complete_var=COMPLETION_VARIABLE, standalone_mode=False
    )
    return result if isinstance(result, int) else 0
