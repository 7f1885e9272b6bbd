"""A worker without a broker: it claims runs from the store, several at a time in one process."""

import signal
import sys
from functools import partial

import anyio

from metier.errors import unwrapped
from metier.runtime.queue.autostart import alone
from metier.runtime.queue.pool import Job, RunPool
from metier.runtime.runs import open_runtime
from metier.runtime.workspace.plugins import using_plugins


def run_until_idle(job: Job) -> None:
    """Be the worker that started itself: one of them at a time, which leaves when it has nothing to do."""
    while True:
        with alone(job.host) as is_alone:
            if not is_alone:
                return
            anyio.run(partial(work_from_store, job, idle_seconds=job.options.idle_seconds))
        # With the lock released: a command that saw it held has put its run into the store before.
        if not anyio.run(has_work, job):
            return


async def has_work(job: Job) -> bool:
    async with open_runtime(job.host) as runtime:
        return bool(await runtime.store.list_stale(queue=job.queue, limit=1))


def run_store_worker(job: Job, *, once: bool = False) -> None:
    """Drive what is in the queue until a signal comes; with `once`, until there is nothing that can continue."""
    anyio.run(partial(work_from_store, job, once=once))


async def work_from_store(job: Job, *, once: bool = False, idle_seconds: float | None = None) -> None:
    with unwrapped(), using_plugins(job.host, report=job.report) as host:
        async with open_runtime(host) as runtime, anyio.create_task_group() as helpers:
            pool = RunPool(job, runtime, job.options.concurrency, idle_seconds=idle_seconds)
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
