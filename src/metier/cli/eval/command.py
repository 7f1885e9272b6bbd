"""`agent eval`: know whether a skill, an agent or a change is better. Without a command it evaluates."""

from pathlib import Path
from typing import Annotated, override

import typer
from typer.core import TyperGroup

from metier.cli.eval.evaluation import EvalOptions, evaluate_targets
from metier.cli.eval.past_runs import attach
from metier.cli.shared.options import AsJson, Config
from metier.errors import UsageError

_RUN = "run"
_HELP = frozenset({"-h", "--help"})


class EvalGroup(TyperGroup):
    """What is no command of the group is the name of a thing to evaluate."""

    usual = _RUN

    @override
    def parse_args(self, ctx: typer.Context, args: list[str]) -> list[str]:  # pyright: ignore[reportIncompatibleMethodOverride]
        if not args or (args[0] not in self.commands and args[0] not in _HELP):
            args = [self.usual, *args]
        return super().parse_args(ctx, args)


Targets = Annotated[
    list[str] | None,
    typer.Argument(help="Skills, agents, tasks: a name, kind:name or a skill's folder; all with evals if left out."),
]
Cases = Annotated[list[str] | None, typer.Option("--case", help="Only the case of this id; may be repeated.")]
Record = Annotated[bool, typer.Option("--record", help="Run each case once, live, and keep the run as its recording.")]
Live = Annotated[bool, typer.Option("--live", help="Run live, with and without the skill, and compare. Costs money.")]
Repeat = Annotated[int, typer.Option("--repeat", min=1, max=1000, help="With --live: runs of each case.")]
Against = Annotated[
    str, typer.Option("--against", help="With --live: compare with a commit, model:NAME or agent:ID instead.")
]
Judge = Annotated[
    str, typer.Option("--judge", help="Let this model decide the sentences; PROVIDER:MODEL for another provider.")
]
MaxCostUsd = Annotated[
    float | None, typer.Option("--max-cost-usd", min=0.000001, help="What all runs together may cost.")
]
Jobs = Annotated[int, typer.Option("--jobs", min=1, max=64, help="How many live runs side by side.")]
Resume = Annotated[str, typer.Option("--resume", help="Go on with a live eval that was cut short: its id, or latest.")]
Triggers = Annotated[
    bool, typer.Option("--triggers", help="Route the trigger queries instead; with --live ask the model.")
]
Suggest = Annotated[bool, typer.Option("--suggest", help="With --triggers: words that the description lacks.")]
Threshold = Annotated[
    float, typer.Option("--threshold", min=0, max=1, help="The share of cases that must pass for exit code 0.")
]
Junit = Annotated[Path | None, typer.Option("--junit", help="Write JUnit XML to this file.")]
Html = Annotated[Path | None, typer.Option("--html", help="Write a page to this file.")]
Out = Annotated[
    Path | None, typer.Option("--out", help="Write grading.json of each run and benchmark.json into this folder.")
]
ProviderName = Annotated[str, typer.Option("--provider", help="Who answers live runs.")]
ModelName = Annotated[str, typer.Option("--model", help="The model of live runs.")]

app = typer.Typer(
    cls=EvalGroup,
    rich_markup_mode=None,
    add_completion=False,
    help="Run the evals of skills, agents and tasks: from recordings, or live; try a change on past runs.",
)


@app.callback()
def evals() -> None:
    """Run the evals of skills, agents and tasks: from recordings, or live; try a change on past runs."""


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
    """Evaluate skills, agents and tasks: from recordings without a key and without network, or live.

    The exit code is 0 when the share of cases that passed reaches the threshold, 1 when it does not, 6 when the budget
    was used up.
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
        raise UsageError("--triggers is about queries alone", hint="Leave --case, --against and --judge out")
    if options.record and (options.live or options.triggers):
        raise UsageError("--record, --live and --triggers are different things", hint="Use one of them")
    if not options.live and (options.repeat > 1 or options.against):
        raise UsageError("--repeat and --against compare live runs", hint="Add --live")
    if options.judge and not (options.live or options.record or options.resume):
        raise UsageError("A judge is asked live", hint="Add --live or --record; replays use its verdicts")
    if options.suggest and not options.triggers:
        raise UsageError("--suggest is about triggers", hint="Add --triggers")
    if options.resume and (options.record or options.triggers):
        raise UsageError("--resume goes on with what was begun", hint="Leave the other options out")
