"""`agent run` and `agent -p`: give a task to an agent and drive it until it ends or waits for a person."""

from collections.abc import Awaitable, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, override

import typer
from typer.core import TyperCommand

from metier.cli.run.detaching import detach_run
from metier.cli.run.driving import OutputFormat, View, Work, drive_run, open_place
from metier.cli.run.live import EVENTS
from metier.cli.run.task_text import read_context, read_task
from metier.cli.shared.output import warn_line
from metier.engine.state import RunState
from metier.errors import UsageError
from metier.runtime.attachments import attach_files
from metier.runtime.host import Host
from metier.runtime.output_schema import read_output_schema
from metier.runtime.queue.detached import submit
from metier.runtime.requests import RunRequest, take_trace
from metier.runtime.runs import Runtime, Watch

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


app = typer.Typer(rich_markup_mode=None, add_completion=False)

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


@app.command(cls=RunCommand)
def run(
    task: Annotated[str | None, typer.Argument(help="What to do; `-` reads it from stdin.")] = None,
    prompt: Annotated[str | None, typer.Option("-p", "--prompt", help="The same, as an option.")] = None,
    task_file: Annotated[Path | None, typer.Option("--task-file", help="A file that holds the task.")] = None,
    *,
    skills_dir: Annotated[Path | None, typer.Option("--skills-dir", help="A folder of skills for this run.")] = None,
    agent: Annotated[str, typer.Option("--agent", help="The agent that does it, by its ID.")] = "",
    profile: Profile = None,
    provider: Annotated[str | None, typer.Option("--provider", help="Who answers; `offline` needs no key.")] = None,
    model: Annotated[str | None, typer.Option("--model", help="The model, as its provider names it.")] = None,
    max_turns: Annotated[int | None, typer.Option("--max-turns", help="How many turns it may take.")] = None,
    max_cost_usd: Annotated[float | None, typer.Option("--max-cost-usd", help="What it may cost.")] = None,
    timeout: Annotated[float | None, typer.Option("--timeout", help="How long it may take, in seconds.")] = None,
    on_limit: OnLimitFlag = None,
    image: Images = None,
    file: Files = None,
    dry_run: DryRun = False,
    debug_llm: DebugLlm = None,
    detach: Detach = False,
    output_schema: OutputSchema = None,
    output_format: Output = "text",
    as_json: Annotated[bool, typer.Option("--json", help="The same as --output-format json.")] = False,
    quiet: Quiet = False,
    ci: Ci = False,
    verbose: Verbose = 0,
    events: Events = False,
    config: Config = None,
) -> int:
    """Give a task to an agent, and watch it work.

    Exit codes: 0 done, 1 failed, 2 wrong call or settings, 3 waits for approval, 4 waits for input, 5 denied, 6 budget,
    7 turn or time limit, 8 provider or key, 9 no sandbox, 10 another process drives it; 129, 130, 143 stopped by
    a signal.
    """
    text = read_task(task, prompt=prompt, file=task_file)
    output_format = choose_output(output_format, as_json=as_json)
    _check_options(timeout, skills_dir, detach=detach)
    flags: dict[str, Any] = {
        "skills.dir": skills_dir,
        "runtime.profile": profile,
        "model.provider": provider,
        "runtime.max_turns": max_turns,
        "runtime.max_cost_usd": max_cost_usd,
        "runtime.on_limit": on_limit,
        "logging.debug_llm_bodies": None if debug_llm is None else str(debug_llm).lower(),
    }
    given = {key: str(value) for key, value in flags.items() if value is not None}
    place = open_place(config, given, is_new_run=not (model or agent))
    if not (quiet or dry_run):
        warn_of_profile(place)
    context = read_context(is_task="-" in (task, prompt))
    schema = None if output_schema is None else read_output_schema(output_schema)
    mode = "dry_run" if dry_run else "live"
    ask = RunRequest(task=text, mode=mode, extra_context=context, agent=agent, model=model or "", output_schema=schema)
    request = with_files(place, ask, images=image or (), files=file or (), is_typed=_is_typed(task, prompt, task_file))
    if detach:
        return leave_to_workers(place, request, output_format, config=config)
    verbosity = EVENTS if events else verbose
    view = View(output=output_format, quiet=quiet, verbosity=verbosity, timeout_seconds=timeout, is_ci=ci)
    return drive_run(place, _start(request), view)


def _is_typed(task: str | None, prompt: str | None, task_file: Path | None) -> bool:
    """What is piped in or read from a file may be the words of anyone: a path in it is no picture that you dropped."""
    return task_file is None and "-" not in (task, prompt)


def with_files(
    place: Host, request: RunRequest, *, images: Sequence[Path], files: Sequence[Path], is_typed: bool
) -> RunRequest:
    """The request with the files that options name and the task mentions. Raises `UsageError`."""
    attached = attach_files(place, request.task, images=images, files=files, pasted=is_typed)
    for name in attached.missing:
        warn_line(f"warning: '@{name}' is no file of this workspace, and stays text")
    return attached.add_to(request)


def _start(request: RunRequest) -> Work:
    def start(runtime: Runtime, watch: Watch) -> Awaitable[RunState]:
        return runtime.start(take_trace(request, runtime.place), watch)

    return start


def warn_of_profile(place: Host) -> None:
    """Say before a run that nothing will be asked, where that is so."""
    if place.settings.runtime.profile == "permissive":
        warn_line("Profile permissive: nothing will be asked (--profile guarded asks before something is changed)")


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


def _check_options(timeout: float | None, skills_dir: Path | None, *, detach: bool) -> None:
    check_timeout(timeout, detach=detach)
    if skills_dir is not None and not skills_dir.is_dir():
        raise UsageError(f"Folder {str(skills_dir)!r} does not exist", hint="Give a folder that has skills in it")


def leave_to_workers(place: Host, request: RunRequest, output: OutputFormat, *, config: Path | None = None) -> int:
    traced = take_trace(request, place)
    return detach_run(
        place, lambda runtime: submit(runtime, traced, queue=place.settings.worker.queue), output, config=config
    )
