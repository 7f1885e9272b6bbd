"""Capacity of one process: runs that all wait for the model at the same time, against bare coroutines."""

import gc
import os
import tempfile
from pathlib import Path
from typing import NamedTuple

import anyio
import anyio.lowlevel

from bench.engine import Echo
from bench.table import Row
from metier.messages import ModelReply, TextPart, Usage
from metier.providers.base import ModelRequest, Observer
from metier.runtime.host import Host
from metier.runtime.requests import RunRequest
from metier.runtime.runs import Runtime, open_runtime
from metier.settings.sections import Settings
from metier.skills.workspace_trust import MADE_HERE
from metier.telemetry.jsonl import FILE_NAME, read_events

RUNS = 2000
_WAIT_SECONDS = 1800


class Held(NamedTuple):
    completed: int
    descriptors: int
    """Open while all runs wait, beyond those that were open before."""
    kilobytes: float
    """Resident memory of a run that waits."""
    records: int
    """Runs whose event log begins with `run_started` and ends with `run_finished`."""


class Gate:
    """A model that answers nobody until as many as it expects have asked."""

    name = "bench"

    def __init__(self) -> None:
        self.expect(1)

    def expect(self, count: int) -> None:
        self._missing = count
        self.is_full, self.is_open = anyio.Event(), anyio.Event()

    async def reply(self, request: ModelRequest, *, observe: Observer | None = None) -> ModelReply:  # noqa: ARG002
        self._missing -= 1
        if self._missing == 0:
            self.is_full.set()
        await self.is_open.wait()
        usage = Usage(input_tokens=100, output_tokens=10)
        return ModelReply(
            parts=(TextPart(text="done"),), stop_reason="end", provider="bench", model="bench", usage=usage
        )

    async def count_tokens(self, request: ModelRequest) -> None:  # noqa: ARG002
        return None

    async def close(self) -> None:
        return None


def rows() -> list[Row]:
    with tempfile.TemporaryDirectory(dir=Path.cwd()) as folder:
        held = anyio.run(hold, Path(folder), RUNS)
    bare = anyio.run(_hold_bare, RUNS)
    return [
        Row(
            f"memory of a run, {RUNS:,} waiting at once in one process",
            f"{held.kilobytes:.0f} kB (bare task {bare:.1f} kB)",
            "<= 120 kB",
            held.kilobytes <= 120 and held.completed == RUNS,
        ),
        Row(f"descriptors open for {RUNS:,} runs", str(held.descriptors), "<= 300", held.descriptors <= 300),
    ]


async def hold(folder: Path, count: int) -> Held:
    """Drive so many runs at once, all of which wait for the model together, and look at the process meanwhile."""
    gate = Gate()
    host = Host(
        trust=MADE_HERE,
        settings=Settings(),
        workspace=folder,
        home=folder,
        environ=dict(os.environ),
        provider=gate,
        tools=(Echo(),),
    )
    async with open_runtime(host) as runtime:
        await _drive(runtime, gate, 3)  # what every process pays once
        before, opened = _resident_kilobytes(), _count_descriptors()
        after, used, run_ids = await _drive(runtime, gate, count)
        records = sum(_is_whole(runtime.folder(run_id) / FILE_NAME) for run_id in run_ids)
    return Held(len(run_ids), used - opened, (after - before) / count, records)


async def _drive(runtime: Runtime, gate: Gate, count: int) -> tuple[float, int, list[str]]:
    """Memory and descriptors while all wait, and the runs that completed."""
    run_ids: list[str] = []
    memory, descriptors = 0.0, 0
    gate.expect(count)

    async def drive() -> None:
        state = await runtime.start(RunRequest(task="talk"))
        if state.status == "completed":
            run_ids.append(state.run_id)

    with anyio.fail_after(_WAIT_SECONDS):
        async with anyio.create_task_group() as tasks:
            for _ in range(count):
                tasks.start_soon(drive)
            await gate.is_full.wait()
            gc.collect()
            memory, descriptors = _resident_kilobytes(), _count_descriptors()
            gate.is_open.set()
    return memory, descriptors, run_ids


async def _hold_bare(count: int) -> float:
    """Kilobytes of a task that waits and holds nothing."""
    is_open = anyio.Event()
    before = after = _resident_kilobytes()
    async with anyio.create_task_group() as tasks:
        for _ in range(count):
            tasks.start_soon(is_open.wait)
        await anyio.lowlevel.checkpoint()
        after = _resident_kilobytes()
        is_open.set()
    return (after - before) / count


def _is_whole(path: Path) -> bool:
    events = [record.event_type for record in read_events(path)]
    return (events[0], events[-1]) == ("run_started", "run_finished")


def _resident_kilobytes() -> float:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 1024


def _count_descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))
