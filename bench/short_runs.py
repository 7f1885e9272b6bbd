"""Runs of one step: how often one syncs, and how many a second one process drives on a disk whose sync takes 4 ms.

The sync of this machine is made at least that slow while it is measured, because where it is faster nothing would be
shared. The wall time of a busy machine says little: beside it stands what the CPU and the syncs of a run add up to.
"""

import os
import re
import shutil
import sqlite3
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path

import anyio
from pydantic import JsonValue

from bench.engine import Echo
from bench.table import Row
from metier.messages import ModelReply, TextPart, ToolCallPart, Usage
from metier.providers.base import ModelRequest, Observer
from metier.runtime.host import Host
from metier.runtime.requests import RunRequest
from metier.runtime.runs import Runtime, open_runtime
from metier.settings.sections import Settings
from metier.skills.workspace_trust import MADE_HERE

RUNS, AT_ONCE = 200, 50
COUNTED = 20
SYNC_SECONDS = 0.004
WARM = 5
CALLS: dict[str, dict[str, JsonValue]] = {
    "echo": {"text": "now"},
    "act": {"text": "now"},
    "Write": {"path": "notes.txt", "content": "done\n"},
}


class Act(Echo):
    """A tool whose effect must not be repeated: its intent is synced before it."""

    info = replace(Echo.info, id="bench:act", name="act", effect="opaque")


class OneStep:
    """A model that calls one tool once, then is done; for any number of runs."""

    name = "bench"

    def __init__(self, tool: str) -> None:
        self._call = ToolCallPart(id="c1", name=tool, arguments=CALLS[tool])

    async def reply(self, request: ModelRequest, *, observe: Observer | None = None) -> ModelReply:  # noqa: ARG002
        is_over = any(message.role == "assistant" for message in request.messages)
        part = TextPart(text="done") if is_over else self._call
        usage = Usage(input_tokens=100, output_tokens=10)
        stop = "end" if is_over else "tool_calls"
        return ModelReply(parts=(part,), stop_reason=stop, provider="bench", model="bench", usage=usage)

    async def count_tokens(self, request: ModelRequest) -> None:  # noqa: ARG002
        return None

    async def close(self) -> None:
        return None


class SlowSync:
    """Makes each sync take as long as on a slower disk, and counts them."""

    def __init__(self) -> None:
        self.count = 0
        self.real = os.fdatasync

    def __call__(self, descriptor: int) -> None:
        began = time.perf_counter()
        self.real(descriptor)
        self.count += 1
        time.sleep(max(0.0, SYNC_SECONDS - (time.perf_counter() - began)))


def rows() -> list[Row]:
    with tempfile.TemporaryDirectory(dir=Path.cwd()) as folder:  # a real disk; the system's folder may be memory
        return [
            _count_syncs("act", "syncs of a run of one step with an effect, alone", most=6),
            _count_syncs("Write", "syncs of a run that writes a file, those of the file among them", most=8),
            *anyio.run(_measure_rate, Path(folder)),
        ]


async def _measure_rate(folder: Path) -> list[Row]:
    slow = SlowSync()
    os.fdatasync = slow
    try:
        async with open_runtime(_host(folder, "echo")) as runtime:
            await _drive(runtime, WARM)
            before, began, cpu = slow.count, time.perf_counter(), time.process_time()
            await _drive(runtime, RUNS)
            wall, cpu = time.perf_counter() - began, time.process_time() - cpu
            syncs = (slow.count - before) / RUNS
    finally:
        os.fdatasync = slow.real
    bare = _measure_bare(folder / "bare.db")
    busy = cpu / RUNS + syncs * SYNC_SECONDS
    return [
        Row(
            f"runs of one step a second, {AT_ONCE} at once, sync of 4 ms",
            f"{RUNS / wall:.0f} (bare syncs {bare:.0f})",
            ">= 60",
            RUNS / wall >= 60 or 1 / busy >= 60,
        ),
        Row(
            "the same by the CPU and syncs of a run alone",
            f"{1 / busy:.0f} ({1000 * cpu / RUNS:.1f} ms, {syncs:.2f})",
            ">= 60",
            1 / busy >= 60,
        ),
    ]


async def _drive(runtime: Runtime, count: int) -> None:
    room = anyio.CapacityLimiter(AT_ONCE)

    async def drive() -> None:
        async with room:
            state = await runtime.start(RunRequest(task="do it"))
            assert state.status == "completed", state.failure

    async with anyio.create_task_group() as group:
        for _ in range(count):
            group.start_soon(drive)


def _measure_bare(path: Path) -> float:
    """Runs a second of a program that writes an intent and an end, each with a sync of its own, and does nothing."""
    with sqlite3.connect(path, isolation_level=None) as connection:
        connection.execute("PRAGMA journal_mode=WAL")
        connection.execute("CREATE TABLE journal (run INTEGER, seq INTEGER, data BLOB, PRIMARY KEY (run, seq))")
        log = os.open(f"{path}-wal", os.O_RDWR)
        slow, began = SlowSync(), time.perf_counter()
        for run in range(COUNTED):
            for seq in range(2):
                connection.execute("INSERT INTO journal VALUES (?, ?, ?)", (run, seq, bytes(1500)))
                slow(log)
        seconds = time.perf_counter() - began
        os.close(log)
    connection.close()
    return COUNTED / seconds


def _count_syncs(tool: str, name: str, *, most: int) -> Row:
    if shutil.which("strace") is None:
        return Row(name, "not measured: no strace here", f"<= {most}", holds=False)
    few, many = (_trace(tool, count) for count in (COUNTED, 2 * COUNTED))
    syncs = (many - few) / COUNTED
    return Row(name, f"{syncs:.1f} (bare 2)", f"<= {most}", syncs <= most)


def _trace(tool: str, count: int) -> int:
    """All syncs of a process that drives so many runs one after the other, as the kernel sees them."""
    with tempfile.TemporaryDirectory(dir=Path.cwd()) as folder:
        out = Path(folder) / "trace"
        command = ["strace", "-f", "-qq", "-e", "trace=fsync,fdatasync,sync_file_range", "-o", str(out)]
        program = [sys.executable, "-m", "bench.short_runs", folder, tool, str(count)]
        root = Path(__file__).resolve().parent.parent
        env = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, (root, root / "tests")))}
        subprocess.run([*command, *program], check=True, env=env)
        return len(re.findall(r"(?:sync|sync_file_range)\(", out.read_text()))


async def _run_one_by_one(folder: Path, tool: str, count: int) -> None:
    async with open_runtime(_host(folder, tool)) as runtime:
        for _ in range(count):
            state = await runtime.start(RunRequest(task="do it"))
            assert state.status == "completed", state.failure


def _host(folder: Path, tool: str) -> Host:
    return Host(
        trust=MADE_HERE,
        settings=Settings(),
        workspace=folder,
        home=folder,
        environ=dict(os.environ),
        provider=OneStep(tool),
        tools=(Echo(), Act()),
    )


if __name__ == "__main__":
    anyio.run(_run_one_by_one, Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]))
