"""A worker without a broker: it claims runs from the store, several at a time in one process."""

import signal
import sys
from functools import partial

import anyio

from metier.engine.unwrapping import unwrapped
from metier.runtime.queue.job import Job
from metier.runtime.queue.pool import RunPool
from metier.runtime.runs import open_runtime
from metier.runtime.workspace.plugins import using_plugins


def run_store_worker(job: Job, *, once: bool = False) -> None:
    """Drive what is in the queue until a signal comes; with `once`, until there is nothing that can go on."""
    anyio.run(partial(work_from_store, job, once=once))


async def work_from_store(job: Job, *, once: bool = False) -> None:
    with unwrapped(), using_plugins(job.place, report=job.report) as place:
        async with open_runtime(place) as runtime, anyio.create_task_group() as helpers:
            pool = RunPool(job, runtime, job.options.concurrency)
            await helpers.start(_obey_signals, pool)
            await pool.work(once=once)
            helpers.cancel_scope.cancel()


async def _obey_signals(pool: RunPool, *, task_status: anyio.abc.TaskStatus[None]) -> None:
    """The first signal lets steps that are under way end in their grace period, the second does not."""
    if sys.platform == "win32":
        task_status.started()
        return
    with anyio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
        task_status.started()
        async for number in signals:
            pool.leave(signal.Signals(number).name)
