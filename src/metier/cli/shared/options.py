"""Options that several commands have, and what is checked of them before anything else is loaded."""

from pathlib import Path
from typing import Annotated, Literal, override

import typer
from typer.core import TyperCommand

from metier.errors import UsageError

type OutputFormat = Literal["text", "json", "stream-json"]

AsJson = Annotated[bool, typer.Option("--json", help="Write JSON.")]
RunName = Annotated[str, typer.Argument(help="The run: its id, the beginning of its id, or `latest`.")]
SkillsDir = Annotated[
    Path | None,
    typer.Option("--skills-dir", help="A folder of skills that win over all others; instead of skills.dir."),
]
AllSkills = Annotated[bool, typer.Option("--all", help="Also the bundled and installed skills that are not enabled.")]
Config = Annotated[Path | None, typer.Option("--config", help="The settings file to use.")]
Output = Annotated[
    # Not by the name of the type, which help would show instead of the words.
    Literal["text", "json", "stream-json"],
    typer.Option("--output-format", help="What stdout gets: the result, one JSON object, or every event and it."),
]
Profile = Annotated[
    Literal["permissive", "guarded", "strict"] | None,
    typer.Option("--profile", help="What happens where no rule speaks: allow, ask, or ask inside a sandbox."),
]
OutputSchema = Annotated[
    str | None,
    typer.Option("--output-schema", help="The result is JSON of this schema: a file, or the schema itself."),
]
DryRun = Annotated[
    bool, typer.Option("--dry-run/--no-dry-run", help="Plan only: no model is asked, no process is started.")
]
DebugLlm = Annotated[
    bool | None,
    typer.Option("--debug-llm/--no-debug-llm", help="Keep whole requests and replies in the run folder."),
]
Images = Annotated[
    list[Path] | None, typer.Option("--image", help="A picture that the model sees with the task; several times.")
]
Files = Annotated[
    list[Path] | None,
    typer.Option("--file", help="A file for the task: text, a picture or a PDF document; several times."),
]
Detach = Annotated[bool, typer.Option("--detach", help="Leave it to a worker: print the id of the run, and end.")]
OnLimitFlag = Annotated[
    Literal["fail", "park"] | None,
    typer.Option("--on-limit", help="At a limit: fail, or park until `agent resume` raises it."),
]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Show nothing while it runs.")]
Ci = Annotated[
    bool, typer.Option("--ci", help="For CI: grouped lines, no colour; summary.md and junit.xml in the run folder.")
]
Verbose = Annotated[
    int,
    typer.Option("--verbose", "-v", count=True, help="Show disclosure, routing and budgets too; -vv: as --events."),
]
Events = Annotated[bool, typer.Option("--events", help="Show a line per event instead of steps.")]


FLAGS_WITH_WORD = ("--dry-run", "--debug-llm")
_WORDS = {"true": True, "yes": True, "on": True, "1": True, "false": False, "no": False, "off": False, "0": False}


class RunCommand(TyperCommand):
    """`--dry-run true` means the same as `--dry-run`, and `--dry-run false` the same as leaving it out."""

    @override
    def parse_args(self, ctx: typer.Context, args: list[str]) -> list[str]:  # pyright: ignore[reportIncompatibleMethodOverride]
        return super().parse_args(ctx, join_words(args))


def join_words(args: list[str]) -> list[str]:
    """Flags with `true` or `false` behind them, or joined by `=`, as plain flags."""
    joined: list[str] = []
    rest = list(args)
    while rest:
        arg = rest.pop(0)
        flag, separator, word = arg.partition("=")
        if arg == "--":
            return [*joined, arg, *rest]
        if flag not in FLAGS_WITH_WORD:
            joined.append(arg)
            continue
        if not separator and rest and rest[0].lower() in ("true", "false"):
            word = rest.pop(0)
        if word and word.lower() not in _WORDS:
            raise UsageError(f"{flag} takes true or false, not {word!r}")
        joined.append(flag if _WORDS.get(word.lower(), True) else flag.replace("--", "--no-", 1))
    return joined


def choose_output(output: OutputFormat, *, as_json: bool) -> OutputFormat:
    """`--json` is short for `--output-format json`. Raises `UsageError` where both are given and differ."""
    if as_json and output == "stream-json":
        raise UsageError("--json and --output-format stream-json exclude each other", hint="Use one of them")
    return "json" if as_json else output


def check_timeout(seconds: float | None, *, detach: bool = False) -> None:
    """Raises `UsageError` for what is no time to wait, `nan` among it, and for a run that no process watches."""
    if seconds is not None and detach:
        raise UsageError("--timeout is for a run that you watch", hint="Set worker.timeout_seconds for workers")
    if seconds is not None and not seconds > 0:
        raise UsageError(f"--timeout must be more than 0, not {seconds:g}")
