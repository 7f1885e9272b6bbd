"""`agent eval`: know whether a skill, an agent or a change is better. Without a command it evaluates."""

from pathlib import Path
from typing import Annotated, override

import typer

from metier.cli.eval.evaluation import EvalOptions, evaluate_targets
from metier.cli.eval.past_runs import attach
from metier.cli.shared.options import AsJson, CommandGroup, Config
from metier.errors import UsageError

_RUN = "run"
_HELP = frozenset({"-h", "--help"})


class EvalGroup(CommandGroup):
    """What is no command of the group is the name of a thing to evaluate."""

    usual = _RUN

    @override
    def parse_args(self, ctx: typer.Context, args: list[str]) -> list[str]:  # pyright: ignore[reportIncompatibleMethodOverride]
        if not args or (args[0] not in self.commands and args[0] not in _HELP):
            args = [self.usual, *args]
        return super().parse_args(ctx, args)


Targets = Annotated[
    list[str] | None,
    typer.Argument(help="Names, kind:name or skill folders. Default: all with evals."),
]
Cases = Annotated[list[str] | None, typer.Option("--case", help="Case ID to run (repeatable).")]
Record = Annotated[bool, typer.Option("--record", help="Run each case live once and save the recording.")]
Live = Annotated[bool, typer.Option("--live", help="Run live with and without the skill; costs money.")]
Repeat = Annotated[int, typer.Option("--repeat", min=1, max=1000, help="With --live: runs per case.")]
Against = Annotated[str, typer.Option("--against", help="With --live: compare with a commit, model:NAME or agent:ID.")]
Judge = Annotated[str, typer.Option("--judge", help="Model that grades criteria, as MODEL or PROVIDER:MODEL.")]
MaxCostUsd = Annotated[
    float | None, typer.Option("--max-cost-usd", min=0.000001, help="Maximum total cost in US dollars.")
]
Jobs = Annotated[int, typer.Option("--jobs", min=1, max=64, help="Maximum parallel live runs.")]
Resume = Annotated[str, typer.Option("--resume", help="Resume an interrupted live eval: its ID or latest.")]
Triggers = Annotated[bool, typer.Option("--triggers", help="Test routing of trigger queries; --live asks the model.")]
Suggest = Annotated[bool, typer.Option("--suggest", help="With --triggers: suggest words for the description.")]
Threshold = Annotated[
    float, typer.Option("--threshold", min=0, max=1, help="Share of cases that must pass for exit code 0.")
]
Junit = Annotated[Path | None, typer.Option("--junit", help="Write JUnit XML to this file.")]
Html = Annotated[Path | None, typer.Option("--html", help="Write an HTML report to this file.")]
Out = Annotated[Path | None, typer.Option("--out", help="Write grading.json and benchmark.json to this folder.")]
ProviderName = Annotated[str, typer.Option("--provider", help="Model provider for live runs.")]
ModelName = Annotated[str, typer.Option("--model", help="Model for live runs.")]

app = typer.Typer(
    cls=EvalGroup,
    rich_markup_mode=None,
    add_completion=False,
    help="Evaluate skills, agents and tasks.",
)


@app.callback()
def evals() -> None:
    """Evaluate skills, agents and tasks."""


@app.command(_RUN)
def run_evals(
    targets: Targets = None,
    *,
    case: Cases = None,
    record: Record = False,
    live: Live = False,
    repeat: Repeat = 1,
    against: Against = "",
    judge: Judge = "",
    max_cost_usd: MaxCostUsd = None,
    jobs: Jobs = 4,
    resume: Resume = "",
    triggers: Triggers = False,
    suggest: Suggest = False,
    threshold: Threshold = 1.0,
    junit: Junit = None,
    html: Html = None,
    out: Out = None,
    provider: ProviderName = "",
    model: ModelName = "",
    as_json: AsJson = False,
    config: Config = None,
) -> int:
    """Run evals from recordings or live.

    Exit codes: 0 the threshold is reached, 1 it is not, 6 the budget is exceeded.
    """
    options = EvalOptions(
        cases=tuple(case or ()),
        record=record,
        live=live,
        repeat=repeat,
        against=against,
        judge=judge,
        max_cost_usd=max_cost_usd,
        jobs=jobs,
        resume=resume,
        triggers=triggers,
        suggest=suggest,
        threshold=threshold,
        junit=junit,
        html=html,
        out=out,
        provider=provider,
        model=model,
        as_json=as_json,
    )
    _check(options)
    return evaluate_targets(tuple(targets or ()), options, config)


attach(app)


def _check(options: EvalOptions) -> None:
    """Raises `UsageError` for options that do not go together, before anything is spent."""
    if options.triggers and (options.cases or options.against or options.judge):
        raise UsageError(
            "--triggers cannot be combined with --case, --against or --judge", hint="Remove the other options"
        )
    if options.record and (options.live or options.triggers):
        raise UsageError("--record, --live and --triggers are mutually exclusive", hint="Use one of them")
    if not options.live and (options.repeat > 1 or options.against):
        raise UsageError("--repeat and --against need --live", hint="Add --live")
    if options.judge and not (options.live or options.record or options.resume):
        raise UsageError(
            "--judge needs --live or --record", hint="Add --live or --record. Replays use the recorded grades"
        )
    if options.suggest and not options.triggers:
        raise UsageError("--suggest needs --triggers", hint="Add --triggers")
    if options.resume and (options.record or options.triggers):
        raise UsageError("--resume cannot be combined with other options", hint="Remove the other options")
