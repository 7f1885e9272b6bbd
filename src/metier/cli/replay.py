"""`agent replay`: show a run again from what was written down."""

import sys
from collections.abc import Iterable
from datetime import datetime
from typing import Annotated

import anyio
import typer

from metier.cli.driving import open_place
from metier.cli.live import JsonLines
from metier.cli.resume import RunName
from metier.cli.run import Config
from metier.events import EventRecord
from metier.runtime.runs import open_runtime
from metier.telemetry.console import ConsoleSink
from metier.telemetry.jsonl import FILE_NAME, read_events
from metier.telemetry.sinks import Sink

app = typer.Typer(rich_markup_mode=None, add_completion=False)


@app.command()
def replay(
    run: RunName,
    *,
    event_stream: Annotated[  # noqa: ARG001 - the one way there is, and the default
        bool, typer.Option("--event-stream", help="Print the stored events; nothing is executed.")
    ] = True,
    speed: Annotated[
        float, typer.Option("--speed", min=0, help="1: as fast as it was, 10: ten times as fast, 0: without waiting.")
    ] = 0,
    as_json: Annotated[bool, typer.Option("--json", help="Write each event as a line of JSON.")] = False,
    config: Config = None,
) -> None:
    """Show a run again from what was written down. No model is asked and no tool is run."""
    sink = JsonLines(sys.stdout) if as_json else ConsoleSink(sys.stdout, level="debug")
    anyio.run(_replay_events, run, config, sink, speed)


async def _replay_events(run: str, config: Config, sink: Sink, speed: float) -> None:
    async with open_runtime(open_place(config)) as runtime:
        row = await runtime.find(run)
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
