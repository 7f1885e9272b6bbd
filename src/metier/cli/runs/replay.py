"""`agent replay`: show a run again, drive it again without its effects (`--execute`), or fork it at a point."""

import json
from collections.abc import Iterable
from datetime import datetime
from typing import Annotated

import anyio
import typer
from pydantic import JsonValue

from metier.cli.run.driver import build_reader
from metier.cli.run.live import EVENTS, ticking
from metier.cli.runs.fork import list_points, start_fork
from metier.cli.shared.open_host import open_host
from metier.cli.shared.options import Config, RunName, Verbose
from metier.cli.shared.output import warn_line, write_json, write_line
from metier.engine.entries.entry import Entry
from metier.engine.replay.recording import Difference, Divergence
from metier.errors import UsageError
from metier.events.record import EventRecord
from metier.runtime.cleaning import build_host_redactor
from metier.runtime.history.forks import ForkRequest
from metier.runtime.history.replays import ReplayReport, replay_run
from metier.runtime.host import Host
from metier.runtime.runs import open_runtime
from metier.telemetry.excerpt import cut_end
from metier.telemetry.jsonl import FILE_NAME, read_events
from metier.telemetry.sinks import Sink
from metier.values import dump_fields

EQUAL, DIVERGED = 0, 1
_SHOWN_CHARACTERS = 300
_SHOWN_DIFFERENCES = 10


def execute_replay(run: str, config: Config, *, with_current_files: bool, as_json: bool) -> int:
    """0 when the run would do the same again, 1 when it would not."""

    async def work() -> ReplayReport:
        async with open_runtime(open_host(config)) as runtime:
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
    """One under the other, so that the eye finds what differs."""
    width = max(len(left), len(right))
    write_line(f"  {difference.path}")
    write_line(f"    {left:<{width}}  {_short(difference.recorded)}")
    write_line(f"    {right:<{width}}  {_short(difference.replayed)}")


def _short(value: JsonValue) -> str:
    return cut_end(json.dumps(value, ensure_ascii=False), _SHOWN_CHARACTERS)


app = typer.Typer(rich_markup_mode=None, add_completion=False)


@app.command()
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
    """Hand on each event, after the pause that was before it, as many times shorter as `speed` says."""
    before: datetime | None = None
    for record in records:
        if speed and before is not None:
            await anyio.sleep(max(0.0, (record.timestamp - before).total_seconds()) / speed)
        before = record.timestamp
        sink.write(record)
    sink.close()
