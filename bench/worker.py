"""Gain of a second worker: runs whose steps wait 50 ms for a model, executed by one and by two."""

import signal
import tempfile
import time
from pathlib import Path

import anyio

from bench.table import Row
from metier.runtime.queue.detached import submit
from metier.runtime.requests import RunRequest
from metier.runtime.runs import Runtime, open_runtime
from metier.settings.sections import WorkerOptions
from services.worker_load import Crew, Load, build_host

RUNS = 16
OPTIONS = WorkerOptions(concurrency=2, turns_per_task=100)


def rows() -> list[Row]:
    one, two = anyio.run(_measure, 1), anyio.run(_measure, 2)
    return [
        Row(
            "runs of 10 steps with a 50 ms model, 2 workers against 1",
            f"{one / two:.2f} ({one:.1f} s)",
            ">= 1.70",
            one / two >= 1.7,
        )
    ]


async def _measure(workers: int) -> float:
    """Seconds from the first run that is taken to the last that ends; workers are up before."""
    with tempfile.TemporaryDirectory(dir=Path.cwd()) as folder, Crew() as crew:
        load = Load(folder=folder, steps=10, reply_seconds=0.05, worker=OPTIONS)
        async with open_runtime(build_host(load)) as runtime:
            await submit(runtime, RunRequest(task="go"), queue=OPTIONS.queue)
            pids = [crew.start(load) for _ in range(workers)]
            await _wait(runtime, 1)
            # All at once: those who work wait until the last of them is there.
            for pid in pids:
                crew.signal(pid, signal.SIGSTOP)
            for _ in range(RUNS):
                await submit(runtime, RunRequest(task="go"), queue=OPTIONS.queue)
            began = time.perf_counter()
            for pid in pids:
                crew.signal(pid, signal.SIGCONT)
            await _wait(runtime, RUNS + 1)
            return time.perf_counter() - began


async def _wait(runtime: Runtime, count: int) -> None:
    while sum(row.status == "completed" for row in await runtime.store.list_runs(limit=1000)) < count:  # noqa: ASYNC110
        await anyio.sleep(0.02)
