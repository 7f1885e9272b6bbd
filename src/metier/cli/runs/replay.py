"""`agent replay`: show a run again, drive it again without its effects (`--execute`), or fork it at a point."""

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
from metier.cli.shared.options import Config, RunName, Verbose
from metier.cli.shared.output import warn_line, write_json, write_line
from metier.cli.shared.place import open_place
from metier.engine.entries.entry import Entry
from metier.engine.replay.recording import Difference, Divergence
from metier.engine.state.run_state import RunState
from metier.errors import UsageError
from metier.events.record import EventRecord
from metier.runtime.history.forks import ForkRequest, Point, find_points, fork_run
from metier.runtime.history.replays import ReplayReport, replay_run
from metier.runtime.history.run_views import read_history
from metier.runtime.host import Host
from metier.runtime.runs import Runtime, Watch, open_runtime
from metier.telemetry.excerpt import cut_end
from metier.telemetry.jsonl import FILE_NAME, read_events
from metier.telemetry.sinks import Sink

EQUAL, DIVERGED = 0, 1
_SHOWN_CHARACTERS = 300
_SHOWN_DIFFERENCES = 10


def execute_replay(run: str, config: Config, *, with_current_files: bool, as_json: bool) -> int:
    """0 when the run would do the same again, 1 when it would not."""

    async def work() -> ReplayReport:
        async with open_runtime(open_place(config)) as runtime:
            row = await runtime.find(run)
            return await replay_run(runtime, row.run_id, with_current_files=with_current_files)

    report = anyio.run(work)
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
        "differences": [
            {"path": found.path, "recorded": found.recorded, "replayed": found.replayed}
            for found in divergence.differences
        ],
    }


def _build_entry(entry: Entry | None) -> JsonValue:
    return None if entry is None else entry.model_dump(mode="json")


def _write_report(report: ReplayReport, *, with_current_files: bool) -> None:
    outcome, divergence = report.outcome, report.outcome.divergence
    if report.changed and not with_current_files:
        names = ", ".join(report.changed)
        warn_line(f"note: changed since the run, which uses what it was pinned to: {names}")
    if outcome.given:
        warn_line(f"note: the first {outcome.given} entries are taken over from the run it was forked from")
    if divergence is None:
        write_line(f"equal: {outcome.compared - outcome.given} entries of run {report.run_id} were found again")
        return
    recorded = divergence.recorded.kind if divergence.recorded else "end of the record"
    write_line(f"differs: entry {divergence.number} of run {report.run_id} ({recorded})")
    write_line(f"  {divergence.sentence}")
    for difference in divergence.differences[:_SHOWN_DIFFERENCES]:
        write_difference(difference, left="recorded", right="replayed")
    more = len(divergence.differences) - _SHOWN_DIFFERENCES
    if more > 0:
        write_line(f"  and {more} more; --json has all of them")


def write_difference(difference: Difference, *, left: str, right: str) -> None:
    """One under the other, so that the eye finds what differs."""
    width = max(len(left), len(right))
    write_line(f"  {difference.path}")
    write_line(f"    {left:<{width}}  {_short(difference.recorded)}")
    write_line(f"    {right:<{width}}  {_short(difference.replayed)}")


def _short(value: JsonValue) -> str:
    return cut_end(json.dumps(value, ensure_ascii=False), _SHOWN_CHARACTERS)


def list_points(run: str, config: Config, *, as_json: bool) -> int:
    async def work() -> tuple[Point, ...]:
        async with open_runtime(open_place(config)) as runtime:
            row = await runtime.find(run)
            return find_points(row.run_id, await read_history(runtime, row.run_id))

    points = anyio.run(work)
    if as_json:
        write_json([to_builtins(point) for point in points])
        return 0
    for point in points:
        write_line(f"{point.number:>5}  turn {point.turn:<3}  after {point.kind:<20}  next {point.phase}")
    return 0


def fork(run: str, config: Config, request: ForkRequest, *, as_json: bool) -> int:
    """Drive the new run; the exit code is that of `agent run`."""

    async def work(runtime: Runtime, watch: Watch) -> RunState:
        row = await runtime.find(run)
        forked = await fork_run(runtime, row.run_id, request, watch=watch)
        warn_line(f"fork:    of {row.run_id} after entry {request.at}")
        for name in forked.changed:
            warn_line(f"changed: {name}")
        return forked.state

    # As a flag of `agent run` would be: an unknown provider is refused here.
    flags = {"model.provider": request.provider} if request.provider else None
    return drive_run(open_place(config, flags), work, View(output="json" if as_json else "text"))


app = typer.Typer(rich_markup_mode=None, add_completion=False)


@app.command()
def replay(
    run: RunName,
    *,
    event_stream: Annotated[
        bool, typer.Option("--event-stream", help="Print the stored events, a line each; nothing is executed.")
    ] = False,
    verbose: Verbose = 0,
    speed: Annotated[
        float, typer.Option("--speed", min=0, help="1: as fast as it was, 10: ten times as fast, 0: without waiting.")
    ] = 0,
    execute: Annotated[
        bool,
        typer.Option(
            "--execute", help="Drive the run again with its effects blocked, and report the first entry that differs."
        ),
    ] = False,
    current: Annotated[
        bool, typer.Option("--current", help="With --execute: use the files of now, not those pinned to the run.")
    ] = False,
    points: Annotated[bool, typer.Option("--points", help="List the entries at which the run can be forked.")] = False,
    fork_at: Annotated[
        int | None,
        typer.Option("--fork-at", min=1, help="Start a new run that shares this many entries, and goes on live."),
    ] = None,
    model: Annotated[str, typer.Option("--model", help="With --fork-at: another model from there on.")] = "",
    provider: Annotated[str, typer.Option("--provider", help="With --fork-at: another provider from there on.")] = "",
    task: Annotated[str, typer.Option("--task", help="With --fork-at: another task from there on.")] = "",
    as_json: Annotated[bool, typer.Option("--json", help="Write JSON; of events, one line each.")] = False,
    config: Config = None,
) -> int:
    """Show a run again from what was written down, drive it again without effects, or fork it."""
    check_one_way(event_stream, execute, points, fork_at is not None)
    if current and not execute:
        raise UsageError("--current says which files --execute uses", hint="Add --execute")
    if (model or provider or task) and fork_at is None:
        raise UsageError("--model, --provider and --task change a fork", hint="Add --fork-at N")
    if execute:
        return execute_replay(run, config, with_current_files=current, as_json=as_json)
    if points:
        return list_points(run, config, as_json=as_json)
    if fork_at is not None:
        request = ForkRequest(at=fork_at, model=model, provider=provider, task=task)
        return fork(run, config, request, as_json=as_json)
    place = open_place(config)
    sink = build_reader(place, verbosity=EVENTS if event_stream else verbose, as_json=as_json)
    anyio.run(_replay_events, run, place, sink, speed)
    return 0


def check_one_way(*ways: bool) -> None:
    if sum(ways) > 1:
        raise UsageError(
            "--event-stream, --execute, --points and --fork-at are different commands", hint="Use one of them"
        )


async def _replay_events(run: str, place: Host, sink: Sink, speed: float) -> None:
    async with open_runtime(place) as runtime:
        row = await runtime.find(run)
        with ticking(sink):
            await show_events(read_events(runtime.folder(row.run_id) / FILE_NAME), sink, speed=speed)


async def show_events(records: Iterable[EventRecord], sink: Sink, *, speed: float) -> None:
    """Hand on each event, after the pause that was before it, as many times shorter as `speed` says."""
    before: datetime | None = None
    for record in records:
        if speed and before is not None:
            await anyio.sleep(max(0.0, (record.timestamp - before).total_seconds()) / speed)
        before = record.timestamp
        sink.write(record)
    sink.close()
