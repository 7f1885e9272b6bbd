"""`agent replay`, `agent fork` and `agent runs diff`: play a run back, repeat it, fork it or compare it."""

import json
from collections.abc import Iterable
from datetime import datetime
from typing import Annotated

import anyio
import typer
from msgspec import to_builtins
from pydantic import JsonValue

from metier.cli.run.driver import View, build_reader, drive_run
from metier.cli.run.live import EVENTS, ticking
from metier.cli.shared.command_options import AsJson, Config, RunName, Verbose
from metier.cli.shared.open_host import open_host
from metier.cli.shared.open_runs import in_runtime
from metier.cli.shared.output import warn_line, write_json, write_line
from metier.engine.entries.entry import Entry
from metier.engine.replay.recording import Difference, Divergence
from metier.engine.state.run_state import RunState
from metier.errors import UsageError
from metier.events.record import EventRecord
from metier.runtime.cleaning import build_host_redactor
from metier.runtime.driver import DriveOptions
from metier.runtime.history.comparison import Comparison, Moment, compare_runs
from metier.runtime.history.forks import ForkRequest, Point, find_points, fork_run
from metier.runtime.history.replays import ReplayReport, replay_run
from metier.runtime.host import Host
from metier.runtime.runs import Runtime, open_runtime
from metier.telemetry.amounts import format_count
from metier.telemetry.excerpt import cut_end
from metier.telemetry.jsonl import FILE_NAME, read_events
from metier.telemetry.sinks import Sink
from metier.values import dump_fields

app = typer.Typer(rich_markup_mode=None, add_completion=False)

EQUAL, DIVERGED = 0, 1
_SHOWN_CHARACTERS = 300
_SHOWN_DIFFERENCES = 10


def execute_replay(run: str, config: Config, *, with_current_files: bool, as_json: bool) -> int:
    """Replay the run without effects. Returns 0 if it does the same again, else 1."""

    async def work(runtime: Runtime) -> ReplayReport:
        row = await runtime.find(run)
        return await replay_run(runtime, row.run_id, with_current_files=with_current_files)

    report = in_runtime(open_host(config), work)
    if as_json:
        write_json(build_report(report))
    else:
        _write_report(report, with_current_files=with_current_files)
    return EQUAL if report.is_equal else DIVERGED


def build_report(report: ReplayReport) -> dict[str, JsonValue]:
    divergence = report.outcome.divergence
    return {
        "run_id": report.run_id,
        "equal": report.is_equal,
        "entries": len(report.outcome.entries),
        "compared": report.outcome.compared - report.outcome.given,
        "taken_over": report.outcome.given,
        "changed_since": list(report.changed),
        "divergence": _build_divergence(divergence) if divergence else None,
    }


def _build_divergence(divergence: Divergence) -> dict[str, JsonValue]:
    return {
        "entry": divergence.number,
        "sentence": divergence.sentence,
        "recorded": _build_entry(divergence.recorded),
        "replayed": _build_entry(divergence.replayed),
        "differences": to_builtins(divergence.differences),
    }


def _build_entry(entry: Entry | None) -> JsonValue:
    return None if entry is None else dump_fields(entry)


def _write_report(report: ReplayReport, *, with_current_files: bool) -> None:
    outcome, divergence = report.outcome, report.outcome.divergence
    if report.changed and not with_current_files:
        names = ", ".join(report.changed)
        warn_line(f"note: Changed since the run, which uses the pinned versions: {names}")
    if outcome.given:
        warn_line(f"note: The first {outcome.given} entries come from the run it was forked from")
    if divergence is None:
        compared = outcome.compared - outcome.given
        write_line(f"Replay matches: {compared} of {len(outcome.entries) - outcome.given} entries")
        return
    recorded = divergence.recorded.kind if divergence.recorded else "end of the journal"
    write_line(f"Replay differs: entry {divergence.number} ({recorded})")
    write_line(f"  {divergence.sentence}")
    for difference in divergence.differences[:_SHOWN_DIFFERENCES]:
        write_difference(difference, left="recorded", right="replayed")
    more = len(divergence.differences) - _SHOWN_DIFFERENCES
    if more > 0:
        write_line(f"  and {more} more; use --json to see all")


def write_difference(difference: Difference, *, left: str, right: str) -> None:
    """Print both values below each other, so that the difference is easy to spot."""
    width = max(len(left), len(right))
    write_line(f"  {difference.path}")
    write_line(f"    {left:<{width}}  {_short(difference.recorded)}")
    write_line(f"    {right:<{width}}  {_short(difference.replayed)}")


def _short(value: JsonValue) -> str:
    return cut_end(json.dumps(value, ensure_ascii=False), _SHOWN_CHARACTERS)


@app.command("replay")
def replay(
    run: RunName,
    *,
    event_stream: Annotated[
        bool, typer.Option("--event-stream", help="Print the stored events, one per line.")
    ] = False,
    verbose: Verbose = 0,
    speed: Annotated[float, typer.Option("--speed", min=0, help="Playback speed: 1 is real time, 0 doesn't wait.")] = 0,
    execute: Annotated[
        bool,
        typer.Option("--execute", help="Run again with effects blocked; report the first difference."),
    ] = False,
    current: Annotated[
        bool, typer.Option("--current", help="With --execute: use current files, not pinned ones.")
    ] = False,
    points: Annotated[bool, typer.Option("--points", hidden=True, help="Same as `agent fork RUN`.")] = False,
    fork_at: Annotated[
        int | None, typer.Option("--fork-at", min=1, hidden=True, help="Same as `agent fork RUN --at N`.")
    ] = None,
    model: Annotated[str, typer.Option("--model", hidden=True, help="With --fork-at: another model.")] = "",
    provider: Annotated[str, typer.Option("--provider", hidden=True, help="With --fork-at: another provider.")] = "",
    task: Annotated[str, typer.Option("--task", hidden=True, help="With --fork-at: another task.")] = "",
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON, or JSON lines of events.")] = False,
    config: Config = None,
) -> int:
    """Replay a run without effects."""
    check_one_way(event_stream, execute, points, fork_at is not None)
    if current and not execute:
        raise UsageError("--current needs --execute", hint="Add --execute")
    if (model or provider or task) and fork_at is None:
        raise UsageError("--model, --provider and --task need --fork-at", hint="Add --fork-at N")
    if execute:
        return execute_replay(run, config, with_current_files=current, as_json=as_json)
    if points:
        return list_points(run, config, as_json=as_json)
    if fork_at is not None:
        request = ForkRequest(at=fork_at, model=model, provider=provider, task=task)
        return start_fork(run, config, request, as_json=as_json)
    host = open_host(config)
    sink = build_reader(build_host_redactor(host), verbosity=EVENTS if event_stream else verbose, as_json=as_json)
    anyio.run(_replay_events, run, host, sink, speed)
    return 0


def check_one_way(*ways: bool) -> None:
    if sum(ways) > 1:
        raise UsageError(
            "--event-stream, --execute, --points and --fork-at are mutually exclusive", hint="Use one of them"
        )


async def _replay_events(run: str, host: Host, sink: Sink, speed: float) -> None:
    async with open_runtime(host) as runtime:
        row = await runtime.find(run)
        with ticking(sink):
            await show_events(read_events(runtime.folder(row.run_id) / FILE_NAME), sink, speed=speed)


async def show_events(records: Iterable[EventRecord], sink: Sink, *, speed: float) -> None:
    """Write each event after its original pause divided by `speed`; 0 doesn't wait."""
    before: datetime | None = None
    for record in records:
        if speed and before is not None:
            # Timestamps come from the system clock, which may have been set back during the run.
            await anyio.sleep(max(0.0, (record.timestamp - before).total_seconds()) / speed)
        before = record.timestamp
        sink.write(record)
    sink.close()


@app.command("fork")
def fork(
    run: RunName,
    *,
    at: Annotated[
        int | None, typer.Option("--at", min=1, help="Number of entries to share. Default: list the fork points.")
    ] = None,
    model: Annotated[str, typer.Option("--model", help="Model for the new run.")] = "",
    provider: Annotated[str, typer.Option("--provider", help="Provider for the new run.")] = "",
    task: Annotated[str, typer.Option("--task", help="Task for the new run.")] = "",
    as_json: AsJson = False,
    config: Config = None,
) -> int:
    """Start a new run from a point of an earlier one."""
    if at is None:
        if model or provider or task:
            raise UsageError(
                "--model, --provider and --task need --at N", hint=f"Run `agent fork {run}` to list the points"
            )
        return list_points(run, config, as_json=as_json)
    return start_fork(run, config, ForkRequest(at=at, model=model, provider=provider, task=task), as_json=as_json)


def list_points(run: str, config: Config, *, as_json: bool) -> int:
    """Print the entries at which the run can be forked."""

    async def work(runtime: Runtime) -> tuple[Point, ...]:
        row = await runtime.find(run)
        return find_points(row.run_id, await runtime.read_entries(row.run_id))

    points = in_runtime(open_host(config), work)
    if as_json:
        write_json(to_builtins(points))
        return 0
    for point in points:
        write_line(f"{point.number:>5}  turn {point.turn:<3}  after {point.kind:<20}  next {point.phase}")
    return 0


def start_fork(run: str, config: Config, request: ForkRequest, *, as_json: bool) -> int:
    """Run the fork and return the exit code of `agent run`."""

    async def work(runtime: Runtime, options: DriveOptions) -> RunState:
        row = await runtime.find(run)
        forked = await fork_run(runtime, row.run_id, request, watch=options)
        warn_line(f"fork:    of {row.run_id} after entry {request.at}")
        for name in forked.changed:
            warn_line(f"changed: {name}")
        return forked.state

    # Passed as a flag, as in `agent run`, so that an unknown provider is rejected here.
    flags = {"model.provider": request.provider} if request.provider else None
    return drive_run(open_host(config, flags), work, View(output="json" if as_json else "text"))


def diff(
    left: Annotated[str, typer.Argument(help="Run ID, a prefix of it, or `latest`.")],
    right: Annotated[str, typer.Argument(help="Run to compare with.")],
    *,
    as_json: AsJson = False,
    config: Config = None,
) -> int:
    """Compare two runs and show the first difference.

    Exit code 1: the runs differ.
    """

    async def work(runtime: Runtime) -> tuple[str, str, Comparison]:
        rows = [await runtime.find(name) for name in (left, right)]
        one, other = [await runtime.read_entries(row.run_id) for row in rows]
        return rows[0].run_id, rows[1].run_id, compare_runs(one, other)

    one, other, comparison = in_runtime(open_host(config), work)
    if as_json:
        write_json({"left": one, "right": other, **_comparison_as_json(comparison)})
    else:
        _write_comparison(one, other, comparison)
    return 0 if comparison.is_equal else 1


def _comparison_as_json(comparison: Comparison) -> dict[str, JsonValue]:
    return {
        "equal": comparison.is_equal,
        "same": comparison.same,
        "turn": comparison.turn,
        "left_moment": to_builtins(comparison.left) if comparison.left else None,
        "right_moment": to_builtins(comparison.right) if comparison.right else None,
        "differences": [_difference_as_json(found) for found in comparison.differences],
        "beginnings": [_difference_as_json(found) for found in comparison.beginnings],
    }


def _difference_as_json(difference: Difference) -> JsonValue:
    return {"path": difference.path, "left": difference.recorded, "right": difference.replayed}


def _write_comparison(one: str, other: str, comparison: Comparison) -> None:
    for difference in comparison.beginnings[:_SHOWN_DIFFERENCES]:
        write_difference(difference, left=one, right=other)
    if comparison.is_equal:
        write_line(f"Runs match: {comparison.same} of {comparison.same} decisions, steps and results")
        return
    where = f"in turn {comparison.turn}" if comparison.turn else "before the first turn"
    write_line(f"Runs differ {where}, after {format_count(comparison.same, 'identical entry', 'identical entries')}")
    if not comparison.differences:
        write_difference(
            Difference("next", _describe_moment(comparison.left), _describe_moment(comparison.right)),
            left=one,
            right=other,
        )
    elif comparison.left is not None:
        write_line(f"  {_describe_moment(comparison.left)}")
    for difference in comparison.differences[:_SHOWN_DIFFERENCES]:
        write_difference(difference, left=one, right=other)


def _describe_moment(moment: Moment | None) -> str:
    return f"entry {moment.number}: {moment.kind}" if moment is not None else "no more entries"
