"""A fleet of workers for tests: queue runs, answer questions, wait until all runs have ended."""

import contextlib
import time
from collections.abc import Callable

import anyio

from metier.engine.state.phases import FINAL
from metier.errors import BrokerUnavailable
from metier.runtime.answers import Answer
from metier.runtime.queue.detached import submit, wake
from metier.runtime.queue.wakeups import find_broker
from metier.runtime.requests import RunRequest
from metier.runtime.runs import Runtime
from metier.store.base import RunRow
from metier.store.failures import LeaseHeld, LeaseLost
from services.worker_load import Load, settle

MAX_RUNS = 1000


async def leave_runs(runtime: Runtime, load: Load, count: int) -> list[str]:
    """Queue this number of runs and notify the workers."""
    queue = load.worker.queue
    run_ids = [(await submit(runtime, RunRequest(task="go"), queue=queue)).run_id for _ in range(count)]
    tell_workers(runtime, load, run_ids)
    return run_ids


def tell_workers(runtime: Runtime, load: Load, run_ids: list[str]) -> None:
    """Notify the workers like a command that queued work."""
    broker = find_broker(load.worker, runtime.host.environ)
    if broker is not None:
        with contextlib.suppress(BrokerUnavailable):
            broker.wake(run_ids, queue=load.worker.queue)
        broker.close()


async def answer_doubts(runtime: Runtime, load: Load) -> int:
    """Answer questions about unknown outcomes after checking the effects."""
    answered: list[str] = []
    for row in await runtime.store.list_runs(status="paused", limit=MAX_RUNS):
        answer = settle(load, await runtime.read(row.run_id))
        if answer is None:
            continue
        try:
            owner = await runtime.get_started(row.run_id)
            await wake(runtime, owner.run_id, Answer(doubt=answer, by="operator"))
            answered.append(owner.run_id)
        except (LeaseHeld, LeaseLost):
            continue
    if answered:
        tell_workers(runtime, load, answered)
    return len(answered)


async def wait_for_rows(
    runtime: Runtime, is_enough: Callable[[list[RunRow]], bool], *, seconds: float, load: Load | None = None
) -> list[RunRow]:
    """Return the rows as soon as they match, or at the timeout."""
    deadline = time.monotonic() + seconds
    while True:
        if load is not None:
            await answer_doubts(runtime, load)
        rows = await runtime.store.list_runs(limit=MAX_RUNS)
        if is_enough(rows) or time.monotonic() > deadline:
            return rows
        await anyio.sleep(0.1)


def is_all(status: str) -> Callable[[list[RunRow]], bool]:
    return lambda rows: bool(rows) and all(row.status == status for row in rows)


async def find_untidy(runtime: Runtime, run_ids: list[str]) -> list[str]:
    """Return runs whose journal does not fold to an end or has a gap."""
    return [run_id for run_id in run_ids if (await runtime.read(run_id)).phase not in FINAL]


async def read_pause(runtime: Runtime, run_id: str) -> str:
    """Return the pause reason of a run; empty if it is not paused."""
    pause = (await runtime.read(run_id)).pause
    return pause.reason if pause else ""
