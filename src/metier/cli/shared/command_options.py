"""Options that several commands share, with their checks, and the server that `--server` names."""

from collections.abc import Generator
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import Annotated, Any, Literal, override

import typer
from typer.core import TyperCommand, TyperGroup

from metier.errors import UsageError

type OutputFormat = Literal["text", "json", "stream-json"]

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]
RunName = Annotated[str, typer.Argument(help="Run ID, a prefix of it, or `latest`.")]
SkillsDir = Annotated[
    Path | None,
    typer.Option("--skills-dir", help="Skills folder with top priority, instead of skills.dir."),
]
AllSkills = Annotated[bool, typer.Option("--all", help="Include disabled skills.")]
# Unreadable files are reported by the reader of the settings, like all their other problems.
Config = Annotated[Path | None, typer.Option("--config", readable=False, help="Settings file.")]
Output = Annotated[
    # Repeated here, because help would show the name of the type instead of its values.
    Literal["text", "json", "stream-json"],
    typer.Option("--output-format", help="Output: text, one JSON object, or JSON events."),
]
IncludePartial = Annotated[bool, typer.Option("--include-partial", help="Add partial text and output to JSON events.")]
Profile = Annotated[
    Literal["permissive", "guarded", "strict"] | None,
    typer.Option("--profile", help="Default when no rule matches: allow, ask, ask and sandbox."),
]
OutputSchema = Annotated[
    str | None,
    typer.Option("--output-schema", help="JSON Schema of the result: a file or inline."),
]
DryRun = Annotated[bool, typer.Option("--dry-run/--no-dry-run", help="Show the plan; call no model, start no process.")]
DebugLlm = Annotated[
    bool | None,
    typer.Option("--debug-llm/--no-debug-llm", help="Save full model requests and replies in the run folder."),
]
Images = Annotated[list[Path] | None, typer.Option("--image", help="Image to attach (repeatable).")]
Files = Annotated[
    list[Path] | None,
    typer.Option("--file", help="Text, image or PDF file to attach (repeatable)."),
]
Detach = Annotated[bool, typer.Option("--detach", help="Run in the background; print the run ID and exit.")]
OnLimitFlag = Annotated[
    Literal["fail", "park"] | None,
    typer.Option("--on-limit", help="At a limit: fail, or pause until resumed."),
]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Show no progress.")]
Ci = Annotated[bool, typer.Option("--ci", help="Format output for CI; write summary.md and junit.xml.")]
Verbose = Annotated[
    int,
    typer.Option("--verbose", "-v", count=True, help="Show routing, skills and budgets; -vv shows events."),
]
Events = Annotated[bool, typer.Option("--events", help="Print a line per event instead of steps.")]


class CommandGroup(TyperGroup):
    """A group that lists its commands by help panel and never truncates their summaries."""

    @override
    def format_commands(self, ctx: typer.Context, formatter: Any) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]
        panels: dict[str, list[tuple[str, str]]] = {}
        for name, command in self.commands.items():
            if not command.hidden:
                panel = getattr(command, "rich_help_panel", None)
                summary = " ".join((command.help or "").strip().partition("\n\n")[0].split()).rstrip(".")
                panels.setdefault(panel if isinstance(panel, str) else "Commands", []).append((name, summary))
        for panel, rows in panels.items():
            with formatter.section(panel):
                formatter.write_dl(rows)


def build_group(summary: str = "") -> typer.Typer:
    """Build a group of commands. Called without a command, it prints its help."""
    return typer.Typer(
        cls=CommandGroup,
        rich_markup_mode=None,
        add_completion=False,
        no_args_is_help=True,
        help=summary,
        # Without a callback, Typer turns a group with one command into that command.
        callback=lambda: None,
    )


FLAGS_WITH_VALUE = ("--dry-run", "--debug-llm")
_WORDS = {"true": True, "yes": True, "on": True, "1": True, "false": False, "no": False, "off": False, "0": False}


class RunCommand(TyperCommand):
    """Accepts `--dry-run true` for `--dry-run`, and `--dry-run false` for omitting it."""

    @override
    def parse_args(self, ctx: typer.Context, args: list[str]) -> list[str]:  # pyright: ignore[reportIncompatibleMethodOverride]
        return super().parse_args(ctx, join_words(args))


def join_words(args: list[str]) -> list[str]:
    """Replace `--flag true` and `--flag=true` by plain flags."""
    joined: list[str] = []
    rest = list(args)
    while rest:
        arg = rest.pop(0)
        flag, separator, word = arg.partition("=")
        # Words after it are arguments, even if they look like options.
        if arg == "--":
            return [*joined, arg, *rest]
        if flag not in FLAGS_WITH_VALUE:
            joined.append(arg)
            continue
        # Only these two: after a space, `yes` or `1` could also be the task.
        if not separator and rest and rest[0].lower() in ("true", "false"):
            word = rest.pop(0)
        if word and word.lower() not in _WORDS:
            raise UsageError(f"{flag} takes true or false, not {word!r}")
        joined.append(flag if _WORDS.get(word.lower(), True) else flag.replace("--", "--no-", 1))
    return joined


def choose_output(output: OutputFormat, *, as_json: bool, include_partial: bool = False) -> OutputFormat:
    """Return the output format; `--json` means `--output-format json`. Raises `UsageError` if they conflict."""
    if as_json and output == "stream-json":
        raise UsageError("--json and --output-format stream-json are mutually exclusive", hint="Use one of them")
    check_partial(output, include_partial=include_partial)
    return "json" if as_json else output


def check_partial(output: OutputFormat, *, include_partial: bool) -> None:
    """Raise `UsageError` if the output has no JSON events."""
    if include_partial and output != "stream-json":
        raise UsageError(
            "--include-partial needs JSON events", hint="Add --output-format stream-json, or --json to `watch`"
        )


def split_input(text: str) -> tuple[str, str]:
    """Split a value of `--input`. Raises `UsageError` if it is not `name=value`."""
    name, separator, value = text.partition("=")
    if not separator or not name.strip():
        raise UsageError(f"Input {text!r} is not name=value", hint="For example, --input topic=birds")
    return name.strip(), value


def check_timeout(seconds: float | None, *, detach: bool = False) -> None:
    """Raise `UsageError` for a timeout that is not positive, such as `nan`, and for one of a detached run."""
    if seconds is not None and detach:
        raise UsageError("--timeout cannot be combined with --detach", hint="Set worker.timeout_seconds instead")
    if seconds is not None and not seconds > 0:
        raise UsageError(f"--timeout must be greater than 0, not {seconds:g}")


_url: ContextVar[str] = ContextVar("server_url", default="")


def get_server_url() -> str:
    """Return the URL of the server; empty for this workspace."""
    return _url.get()


@contextmanager
def using_server(url: str) -> Generator[None]:
    """Run commands on this server inside the block."""
    token = _url.set(url)
    try:
        yield
    finally:
        _url.reset(token)
