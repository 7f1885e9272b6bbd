"""The root of the command line: a table of commands, each imported when it runs and not before."""

import importlib
import os
import sys
from collections.abc import Sequence
from typing import Annotated, Any, NamedTuple, override

import typer
from typer._click.shell_completion import CompletionItem
from typer.core import TyperGroup
from typer.main import get_command

from metier.errors import UsageError
from metier.version import __version__

COMPLETION_VARIABLE = "_AGENT_COMPLETE"
READER_LEFT = 141
"""What a shell makes of a process that SIGPIPE ended."""


class Lazy(NamedTuple):
    """A command that is known by name and one line until someone calls it."""

    module: str
    """A module with a Typer called `app`, below `metier.cli` unless it begins with `metier.`."""
    summary: str


COMMANDS: dict[str, Lazy] = {
    "init": Lazy("init", "Write a small workspace to begin with: agent, skills, task, rules."),
    "run": Lazy("run.command", "Give a task to an agent, and watch it work."),
    "chat": Lazy("chat.command", "Talk to an agent, and go on with earlier conversations."),
    "resume": Lazy("run.resume", "Go on with a run: after an answer, an approval, a signal or a crash."),
    "task": Lazy("task", "List, show, check and run the task definitions of the workspace."),
    "runs": Lazy("runs.command", "List, show, watch, cancel, export, compare and delete runs."),
    "replay": Lazy("runs.replay", "Show a run again, drive it again without effects, or fork it."),
    "worker": Lazy("metier.worker.command", "Drive runs that were left to workers, until you stop it."),
    "approvals": Lazy("approvals", "List, show and decide what waits for a person's word."),
    "trust": Lazy("trust", "Trust what this cloned folder brings: settings, rules, agents, tasks, skills."),
    "policy": Lazy("policy", "Explain, test and backtest the rules about what may happen."),
    "agents": Lazy("agents", "List the agents of the workspace, and show what each may use."),
    "prompt": Lazy("prompt", "Show what a model is told: every layer, its source, its hash and its cost."),
    "mcp": Lazy("mcp", "List and accept the external tool servers (MCP) of this workspace."),
    "doctor": Lazy("doctor.command", "Say what is installed, which keys are set, what works here and what to do next."),
    "check": Lazy("skill.check", "Say which skills are active, what each brings, and why one cannot be loaded."),
    "config": Lazy("config", "Write, check and show the settings."),
    "validate": Lazy("validate", "Check everything a project defines, and that what it names exists."),
    "skills": Lazy("skill.skills_command", "List, inspect, validate and route skills."),
    "plugins": Lazy("plugins", "Show which plugins are installed, what each adds, and why one is off."),
    "redact": Lazy("redact", "Show text as the log would: without secrets, without control characters."),
    "skill": Lazy("skill.command", "Install, inspect, trust, test and remove skill packages."),
    "completion": Lazy("completion", "Print the completion script of a shell."),
}


class LazyGroup(TyperGroup):
    """Lists commands from the table and imports one only when it is called."""

    @override
    def list_commands(self, ctx: typer.Context) -> list[str]:  # pyright: ignore[reportIncompatibleMethodOverride]
        return list(COMMANDS)

    @override
    def get_command(self, ctx: typer.Context, cmd_name: str) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
        return load_command(cmd_name)

    @override
    def invoke(self, ctx: typer.Context) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
        try:
            return super().invoke(ctx)
        except BrokenPipeError:
            # Typer would end with 1 here, as if the command had failed; its reader left.
            sys.stdout = None
            return READER_LEFT

    @override
    def shell_complete(self, ctx: typer.Context, incomplete: str) -> list[CompletionItem]:  # pyright: ignore[reportIncompatibleMethodOverride]
        # Past the group's own completion, which would import every command to learn its summary.
        options = super(TyperGroup, self).shell_complete(ctx, incomplete)
        named = [
            CompletionItem(name, help=lazy.summary) for name, lazy in COMMANDS.items() if name.startswith(incomplete)
        ]
        return named + options

    @override
    def format_commands(self, ctx: typer.Context, formatter: Any) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]
        rows = [(name, lazy.summary) for name, lazy in COMMANDS.items()]
        with formatter.section("Commands"):
            formatter.write_dl(rows)


def load_command(name: str) -> Any:  # noqa: ANN401 - Typer does not export the type of its commands
    """The command of that name, its module imported now."""
    lazy = COMMANDS.get(name)
    if lazy is None:
        return _load_plugin_command(name)
    module = lazy.module if lazy.module.startswith("metier.") else f"metier.cli.{lazy.module}"
    command: Any = get_command(importlib.import_module(module).app)
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
    help="A skill-native agent runtime. Agents, skills and tasks are Markdown; a run is its journal.",
)


@app.callback()
def root(
    prompt: Annotated[  # noqa: ARG001
        str | None, typer.Option("-p", "--prompt", help="A task: `agent -p TASK …` is `agent run TASK …`.")
    ] = None,
    version: Annotated[bool, typer.Option("--version", help="Show the version and leave.")] = False,
    check: Annotated[bool, typer.Option("--check", help="The same as `agent check`.")] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")] = False,  # noqa: ARG001
) -> None:
    """`--debug` is taken by `main.run`, before anything can fail; `-p` and a leading `--check` by `invoke`."""
    if check:
        raise UsageError("--check stands alone", hint="Write `agent check`, and its options after it")
    if version:
        typer.echo(f"agent {__version__}")
        raise typer.Exit


def _name_command(args: Sequence[str]) -> list[str]:
    """`agent -p TASK --model M` is `agent run -p TASK --model M`: with all of its options, in any order."""
    is_prompt = bool(args) and args[0].startswith("-") and any(arg.split("=")[0] in ("-p", "--prompt") for arg in args)
    return ["run", *args] if is_prompt else list(args)


def invoke(args: Sequence[str]) -> int:
    """Run the command line; the exit code of the command, errors as exceptions."""
    if COMPLETION_VARIABLE in os.environ:
        # Typer registers its shells only for apps that offer to install completion themselves.
        importlib.import_module("typer._completion_classes").completion_init()
    words = ["check", *args[1:]] if list(args[:1]) == ["--check"] else list(args)
    result: object = get_command(app).main(
        args=_name_command(words), prog_name="agent", complete_var=COMPLETION_VARIABLE, standalone_mode=False
    )
    return result if isinstance(result, int) else 0
