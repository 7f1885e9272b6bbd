"""Follow the event log of a run while somebody, perhaps another process, writes it. Only reads."""

import sys
from collections.abc import AsyncGenerator
from pathlib import Path

import anyio
from pydantic import ValidationError

from metier.cli.exit_codes import FAILED, get_exit_code
from metier.event_record import EventRecord
from metier.runtime.runs import Runtime
from metier.store.base import RUNNABLE
from metier.telemetry.jsonl import FILE_NAME
from metier.telemetry.sinks import Sink

POLL_SECONDS = 0.1


async def follow_run(runtime: Runtime, run_id: str, sink: Sink) -> int:
    """Show every event until the run ends or waits; the exit code of a command that had driven it."""
    path = runtime.folder(run_id) / FILE_NAME
    async for record in _follow(path, runtime, run_id):
        sink.write(record)
    sink.close()
    state = await runtime.read(run_id)
    if state.status == "in_progress":
        sys.stderr.write(f"Nobody drives this run any more; `agent resume {run_id}` goes on with it\n")
        return FAILED
    return get_exit_code(state)


async def _follow(path: Path, runtime: Runtime, run_id: str) -> AsyncGenerator[EventRecord]:
    position = 0
    while True:
        # Who drives is asked first: what it wrote before it let go is then still read.
        row = await runtime.store.find_run(run_id)
        # One of a queue is driven as soon as a worker comes to it.
        is_driven = row is not None and bool(row.driver or (row.queue and row.status in RUNNABLE))
        lines, position = _read_on(path, position)
        for line in lines:
            try:
                yield EventRecord.model_validate_json(line)
            except ValidationError:  # written by a newer version, or damaged: `agent replay` says which
                continue
        if not is_driven:
            return
        await anyio.sleep(POLL_SECONDS)


def _read_on(path: Path, position: int) -> tuple[list[bytes], int]:
    """The whole lines after a position, and where they end; a line that is being written waits for the next look."""
    try:
        with path.open("rb") as file:
            file.seek(position)
            data = file.read()
    except FileNotFoundError:
        return [], position
    whole = data[: data.rfind(b"\n") + 1]
    return whole.splitlines(), position + len(whole)
