"""`agent replay`: show a run again, drive it again without its effects, or go on from the middle of it as a new run."""

from collections.abc import Iterable
from datetime import datetime
from typing import Annotated

import anyio
import typer

from metier.cli.run.driving import build_reader
from metier.cli.run.live import EVENTS, ticking
from metier.cli.runs.replay_execute import execute_replay
from metier.cli.runs.replay_fork import fork, list_points
from metier.cli.shared.options import Config, RunName, Verbose
from metier.cli.shared.place import open_place
from metier.errors import UsageError
from metier.event_record import EventRecord
from metier.runtime.history.forks import ForkRequest
from metier.runtime.host import Host
from metier.runtime.runs import open_runtime
from metier.telemetry.jsonl import FILE_NAME, read_events
from metier.telemetry.sinks import Sink

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
