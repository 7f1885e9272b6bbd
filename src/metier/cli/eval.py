"""`agent eval`: evaluate skills, agents, tasks and changes. Without a command it evaluates."""

import json
import os
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, override

import anyio
import typer
from msgspec import Struct, to_builtins
from pydantic import JsonValue

from metier.cli.shared.command_options import AsJson, CommandGroup, Config, RunName
from metier.cli.shared.open_host import open_host
from metier.cli.shared.open_runs import in_runtime
from metier.cli.shared.output import printable, render_json, warn_line, write_json, write_line
from metier.definitions.files.whole_file import replace_file
from metier.definitions.nearest import hint_nearest
from metier.definitions.problems import Problem
from metier.errors import UsageError
from metier.evals.backtest import KINDS, BacktestedRun, backtest_run, list_past_runs, parse_changes
from metier.evals.bench import build_variants, get_commit
from metier.evals.eval_results import FOLDER, EvalResult, Mode, RunRow, save_result
from metier.evals.live_evals import Plan, load_plan, open_session, write_plan
from metier.evals.recorded_evals import ITSELF, replay_target
from metier.evals.recordings import Captured, capture_run, name_recording
from metier.evals.report_formats import (
    build_benchmark,
    build_grading,
    render_comparison,
    render_html,
    render_junit,
    render_result,
    render_row,
)
from metier.evals.statistics import compare
from metier.evals.targets import SourcedCase, Target, get_target, list_targets
from metier.evals.triggers import (
    build_trigger_cases,
    build_trigger_row,
    list_rivals,
    route_triggers,
    suggest_words,
)
from metier.ids import format_run_id
from metier.runtime.host import Host
from metier.runtime.runs import Runtime
from metier.runtime.status import BUDGET, DONE, FAILED
from metier.runtime.workspace.plugins import using_plugins
from metier.telemetry.amounts import format_cost


class EvalOptions(Struct, frozen=True, kw_only=True):
    """Options of an eval."""

    cases: tuple[str, ...] = ()
    record: bool = False
    live: bool = False
    repeat: int = 1
    against: str = ""
    judge: str = ""
    max_cost_usd: float | None = None
    jobs: int = 4
    resume: str = ""
    triggers: bool = False
    suggest: bool = False
    threshold: float = 1.0
    junit: Path | None = None
    html: Path | None = None
    out: Path | None = None
    provider: str = ""
    model: str = ""
    as_json: bool = False

    @property
    def mode(self) -> Mode:
        return "record" if self.record else "live" if self.live or self.resume else "replay"


def write_results(results: Sequence[EvalResult], options: EvalOptions) -> None:
    """Print the results and write the requested report files, with secrets redacted."""
    if options.junit is not None:
        _write(options.junit, printable(render_junit(results)))
    if options.html is not None:
        _write(options.html, printable(render_html(results)))
    if options.out is not None:
        for result in results:
            _write_convention(result, options.out if len(results) == 1 else options.out / name_recording(result.target))
    if options.as_json:
        write_json([build_json(result) for result in results])
        return
    for result in results:
        for line in render_comparison(result) if result.mode == "live" else render_result(result):
            write_line(line)
        if result.budget_used_up:
            warn_line("Budget exceeded. Continue with --resume and a higher --max-cost-usd, or run fewer cases")


def build_json(result: EvalResult) -> dict[str, JsonValue]:
    """Build the JSON of a result, with its statistics."""
    plain: dict[str, JsonValue] = json.loads(result.model_dump_json())
    numbers: dict[str, JsonValue] = json.loads(json.dumps(to_builtins(compare(result))))
    return {**plain, "share": result.share, "cost_usd": result.cost_usd, "numbers": numbers}


def _write_convention(result: EvalResult, folder: Path) -> None:
    for row in result.rows:
        parts = [name_recording(row.case_id), *([row.variant.replace(":", "-")] if row.variant else [])]
        name = folder.joinpath(*parts, *([f"run-{row.repetition}"] if result.repeat > 1 else []), "grading.json")
        _write(name, render_json(build_grading(row), indent=2) + "\n")
    _write(folder / "benchmark.json", render_json(build_benchmark(result), indent=2) + "\n")


def _write(file: Path, text: str) -> None:
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        replace_file(file, text.encode(), is_private=False)
    except OSError as error:
        raise UsageError(f"'{file}' cannot be written: {error.strerror}", hint="Pass another file") from error


# Tolerates rounding: a share is a floating-point fraction.
_SLACK = 1e-9


def evaluate_targets(names: Sequence[str], options: EvalOptions, config: Path | None) -> int:
    """Run the evals and return the exit code: 0, 1 below the threshold, 6 if the budget is exceeded."""
    plan = load_plan(open_host(config).runs, options.resume) if options.resume else None
    if plan is not None and names:
        raise UsageError("--resume cannot be combined with other options", hint="Remove the names")
    host = open_host(config, _list_flags(options, plan))
    targets = [get_target(host, name) for name in ((plan.target,) if plan else names)] or _list_all(host, options)
    if not targets:
        hint = 'Create evals/evals.json next to a SKILL.md: {"evals": [{"prompt": …, "assertions": […]}]}'
        raise UsageError("No evals found", hint=hint)
    problems = [problem for target in targets for problem in target.problems]
    for problem in problems:
        warn_line(problem.render())
    results = [_evaluate(target, options, plan) for target in targets]
    for result in results:
        _save(host, result)
    write_results(results, options)
    return get_exit_code(results, problems, threshold=options.threshold)


def _list_all(host: Host, options: EvalOptions) -> list[Target]:
    return [target for target in list_targets(host) if (target.triggers if options.triggers else target.cases)]


def get_exit_code(results: Sequence[EvalResult], problems: Sequence[Problem], *, threshold: float) -> int:
    """Return the exit code. An invalid assertion counts as a failure, because nothing was checked."""
    if any(result.budget_used_up for result in results):
        return BUDGET
    rows = [row for result in results for row in result.own]
    share = sum(row.has_passed for row in rows) / len(rows) if rows else 0.0
    has_errors = any(problem.severity == "error" for problem in problems)
    return DONE if share + _SLACK >= threshold and not has_errors else FAILED


def _list_flags(options: EvalOptions, plan: Plan | None) -> dict[str, str]:
    provider = options.provider or (plan.provider if plan else "")
    model = options.model or (plan.model if plan else "")
    named = (("model.provider", provider), ("model.name", model))
    return {key: value for key, value in named if value}


def choose_cases(target: Target, wanted: Sequence[str]) -> tuple[SourcedCase, ...]:
    """Return the wanted cases. Raises `UsageError` for an unknown ID."""
    known = [sourced.case.id for sourced in target.cases]
    for case_id in wanted:
        if case_id not in known:
            hint = hint_nearest(case_id, known) or f"Available cases: {', '.join(known) or 'none'}"
            raise UsageError(f"{target.name} has no case {case_id!r}", hint=hint)
    return tuple(sourced for sourced in target.cases if not wanted or sourced.case.id in wanted)


def _evaluate(target: Target, options: EvalOptions, plan: Plan | None) -> EvalResult:
    is_triggering = plan.triggers if plan else options.triggers
    if is_triggering:
        _check_triggers(target)
    wanted = plan.cases if plan else options.cases
    if plan is not None and options.max_cost_usd is not None:
        plan = plan.model_copy(update={"max_cost_usd": options.max_cost_usd})
    cases = build_trigger_cases(target) if is_triggering else choose_cases(target, wanted)
    if not cases:
        raise UsageError(f"{target.name} has no cases", hint="Create evals/evals.json or .agent/evals/*.yaml")
    now = datetime.now(UTC)
    result = EvalResult(
        id=plan.id if plan else format_run_id(now, os.urandom(6)),
        target=target.name,
        mode=options.mode,
        started_at=plan.started_at if plan else now.isoformat(timespec="milliseconds"),
        commit=get_commit(target.package.folder if target.package else target.host.workspace),
    )
    if options.triggers and options.mode == "replay":
        return _route(target, options, result)
    if options.mode == "replay":
        return result.model_copy(update={"rows": anyio.run(replay_target, target, cases)})
    chosen = plan or Plan(
        id=result.id,
        target=target.name,
        record=options.record,
        repeat=options.repeat,
        against=options.against,
        cases=options.cases,
        judge=options.judge,
        jobs=options.jobs,
        max_cost_usd=options.max_cost_usd,
        provider=options.provider,
        model=options.model,
        triggers=options.triggers,
        started_at=result.started_at,
    )
    return anyio.run(_run_live, target, chosen, cases, result, options.as_json)


def _check_triggers(target: Target) -> None:
    if target.kind != "skill":
        raise UsageError(f"A {target.kind} has no triggers", hint="Only skills have trigger queries")
    if not target.triggers:
        hint = 'Create evals/trigger-eval.json: [{"query": "…", "should_trigger": true}]'
        raise UsageError(f"{target.name} has no trigger queries", hint=hint)


def _route(target: Target, options: EvalOptions, result: EvalResult) -> EvalResult:
    """Route every query as a run would, without calling a model."""
    skills = list_rivals(target)
    min_score = target.host.settings.skills.prefilter_min_score
    routed = route_triggers(target.id, target.triggers, skills, min_score=min_score)
    if options.suggest:
        found = suggest_words(target.id, target.triggers, skills, min_score=min_score)
        words = ", ".join(found.words)
        advice = f"Add to the description: {words}" if words else "No word of the missed queries would improve routing"
        if found.before == found.total:
            advice = "All queries are routed correctly"
        warn_line(f"{target.name}  {advice} ({found.before} of {found.total} right now, {found.after} with them)")
        result = result.model_copy(update={"suggested_words": found.words})
    return result.model_copy(update={"rows": tuple(build_trigger_row(each, target.id) for each in routed)})


async def _run_live(
    target: Target, plan: Plan, cases: Sequence[SourcedCase], result: EvalResult, quiet: bool
) -> EvalResult:
    host = target.host
    folder = host.runs / FOLDER / plan.id
    # Before the first run: `--resume` reads the plan after a kill.
    write_plan(folder, plan)
    variants = (ITSELF,) if plan.record or plan.triggers else build_variants(target, plan.against, folder=folder)

    def report_row(row: RunRow) -> None:
        if not quiet and not plan.record:
            for line in render_row(row):
                warn_line(line)

    if not plan.record:
        warn_line(f"eval {plan.id}; if interrupted, resume it with `agent eval --resume {plan.id}`")
    with using_plugins(host, report=warn_line):
        session = open_session(target, plan, host, report=report_row)
        rows = await session.run(variants, cases)
    return result.model_copy(
        update={
            "rows": rows,
            "repeat": plan.repeat,
            "variants": tuple(variant.name for variant in variants),
            "budget_used_up": session.budget.is_used_up,
            "provider": host.settings.model.provider,
            "model": host.settings.model.name,
        }
    )


def _save(host: Host, result: EvalResult) -> None:
    # The runs are done and paid for, so a full disk must not hide their results.
    try:
        save_result(host.runs, result)
    except OSError as error:
        warn_line(f"warning: Cannot save the result in '{host.runs}': {error.strerror}")


SAME, DIFFERENT = 0, 1


def backtest(
    *,
    change: Annotated[
        list[str], typer.Option("--change", help=f"Change as KIND=VALUE (repeatable): {', '.join(KINDS)}.")
    ],
    runs: Annotated[str, typer.Option("--runs", help="Number of newest runs, agent=ID, status=STATUS, or IDs.")] = "20",
    as_json: AsJson = False,
    config: Config = None,
) -> int:
    """Replay past runs with a change and show differences.

    Sends and runs nothing. Exit code 1: a run would differ.
    """
    host = open_host(config)
    proposed = parse_changes(change, workspace=host.workspace)

    async def work(runtime: Runtime) -> list[BacktestedRun]:
        return [await backtest_run(runtime, row, proposed) for row in await list_past_runs(runtime, runs)]

    found = in_runtime(host, work)
    if as_json:
        write_json([json.loads(json.dumps({**to_builtins(run), "differs": run.differs}, default=str)) for run in found])
    else:
        for run in found:
            _write_past_runs(run)
        differing = sum(run.differs for run in found)
        warn_line(f"{differing} of {len(found)} runs would differ")
    return DIFFERENT if any(run.differs or run.problem for run in found) else SAME


def _write_past_runs(run: BacktestedRun) -> None:
    word = "cannot be replayed" if run.problem else "differs" if run.differs else "same"
    write_line(f"{run.run_id}  {word}: {run.exact} of {run.entries} entries match exactly, {run.carried} carried")
    if run.problem:
        write_line(f"    {run.problem}")
    if run.routing is not None:
        write_line(
            f"    routing: {', '.join(run.routing.before) or 'none'} -> {', '.join(run.routing.after) or 'none'}"
        )
    if run.turns_with_other_prompt:
        turns = ", ".join(str(turn) for turn in run.turns_with_other_prompt)
        before, after = run.prompt_tokens
        write_line(f"    prompt: differs in turn {turns}; about {after - before:+d} tokens ({before} -> {after})")
    for change in run.verdicts:
        write_line(f"    verdict: {change.tool} {change.was} -> {change.now} ({change.reason})")
    before_usd, after_usd = run.cost_usd
    if before_usd is not None and after_usd is not None:
        write_line(f"    cost: {format_cost(before_usd)} -> {format_cost(after_usd)} for the same tokens")
    if run.stops:
        write_line(f"    the recording ends at entry {run.carried}: {run.stops}")


def capture(
    run: RunName,
    *,
    id_: Annotated[str, typer.Option("--id", help="Case ID. Default: the run's ID.")] = "",
    target: Annotated[str, typer.Option("--for", help="Target as kind:name. Default: what the run used.")] = "",
    as_json: AsJson = False,
    config: Config = None,
) -> None:
    """Create an eval case from a past run."""
    host = open_host(config)

    async def work(runtime: Runtime) -> Captured:
        row = await runtime.find(run)
        return await capture_run(runtime, row.run_id, case_id=id_ or row.run_id, target_name=target)

    captured = in_runtime(host, work)
    rows = anyio.run(replay_target, captured.target, (captured.sourced,))
    shown = captured.file.relative_to(host.workspace).as_posix()
    if as_json:
        files, unsure = list(captured.files), list(captured.unsure)
        status = rows[0].status
        write_json({"file": shown, "target": captured.target.name, "files": files, "as_now": unsure, "status": status})
        return
    write_line(shown)
    for path in captured.unsure:
        warn_line(f"note: {path} has its current content: the run read it but did not change it")
    for line in render_row(rows[0]):
        warn_line(line)


_HELP = frozenset({"-h", "--help"})


class EvalGroup(CommandGroup):
    """A group that treats an unknown command as the name of a target: `agent eval NAME`."""

    default = "run"

    @override
    def parse_args(self, ctx: typer.Context, args: list[str]) -> list[str]:  # pyright: ignore[reportIncompatibleMethodOverride]
        if not args or (args[0] not in self.commands and args[0] not in _HELP):
            args = [self.default, *args]
        return super().parse_args(ctx, args)


Targets = Annotated[
    list[str] | None, typer.Argument(help="Names, kind:name or skill folders. Default: all with evals.")
]
MaxCostUsd = Annotated[
    float | None, typer.Option("--max-cost-usd", min=0.000001, help="Maximum total cost in US dollars.")
]

app = typer.Typer(cls=EvalGroup, rich_markup_mode=None, add_completion=False, help="Evaluate skills, agents and tasks.")


@app.command(EvalGroup.default)
def run_evals(
    targets: Targets = None,
    *,
    case: Annotated[list[str] | None, typer.Option("--case", help="Case ID to run (repeatable).")] = None,
    record: Annotated[bool, typer.Option("--record", help="Run each case live once and save the recording.")] = False,
    live: Annotated[bool, typer.Option("--live", help="Run live with and without the skill; costs money.")] = False,
    repeat: Annotated[int, typer.Option("--repeat", min=1, max=1000, help="With --live: runs per case.")] = 1,
    against: Annotated[
        str, typer.Option("--against", help="With --live: compare with a commit, model:NAME or agent:ID.")
    ] = "",
    judge: Annotated[str, typer.Option("--judge", help="Model that grades criteria, as MODEL or PROVIDER:MODEL.")] = "",
    max_cost_usd: MaxCostUsd = None,
    jobs: Annotated[int, typer.Option("--jobs", min=1, max=64, help="Maximum parallel live runs.")] = 4,
    resume: Annotated[str, typer.Option("--resume", help="Resume an interrupted live eval: its ID or latest.")] = "",
    triggers: Annotated[
        bool, typer.Option("--triggers", help="Test routing of trigger queries; --live asks the model.")
    ] = False,
    suggest: Annotated[
        bool, typer.Option("--suggest", help="With --triggers: suggest words for the description.")
    ] = False,
    threshold: Annotated[
        float, typer.Option("--threshold", min=0, max=1, help="Share of cases that must pass for exit code 0.")
    ] = 1.0,
    junit: Annotated[Path | None, typer.Option("--junit", help="Write JUnit XML to this file.")] = None,
    html: Annotated[Path | None, typer.Option("--html", help="Write an HTML report to this file.")] = None,
    out: Annotated[
        Path | None, typer.Option("--out", help="Write grading.json and benchmark.json to this folder.")
    ] = None,
    provider: Annotated[str, typer.Option("--provider", help="Model provider for live runs.")] = "",
    model: Annotated[str, typer.Option("--model", help="Model for live runs.")] = "",
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


app.command()(backtest)
app.command()(capture)


def _check(options: EvalOptions) -> None:
    """Raise `UsageError` for conflicting options, before any model is called."""
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
