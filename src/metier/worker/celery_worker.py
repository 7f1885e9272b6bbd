"""A worker that a Celery broker wakes up. Three kinds of processes, none of which outlives the first:

- the first one obeys signals and looks for runs that no message names (`worker.sweeper`),
- Celery's own takes messages,
- its children drive one run each.
"""

import ctypes
import multiprocessing
import os
import signal
import sys
from functools import partial
from multiprocessing.context import ForkContext, ForkProcess

import anyio

from metier.errors import BrokerUnavailable, StoreError, unwrapped
from metier.runtime.queue.broker import Address, name_recovery
from metier.runtime.queue.celery_broker import CeleryBroker, build_app
from metier.runtime.queue.pool import Job, sweep
from metier.runtime.runs import open_runtime
from metier.worker.celery_tasks import ParentWatch, add_tasks, open_leash

_PR_SET_PDEATHSIG = 1
_LOOK_SECONDS = 0.2


def run_celery_worker(job: Job, address: Address) -> int:
    """Serve the queue until a signal comes; the exit code of Celery."""
    leash = open_leash()
    context: ForkContext = multiprocessing.get_context("fork")
    consumer = context.Process(
        target=_consume, args=(job, address), kwargs={"leash": leash, "parent": os.getpid()}, name="metier-consumer"
    )
    consumer.start()
    try:
        anyio.run(partial(_supervise, job, address, consumer=consumer, leash=leash))
    finally:
        leash.pull()
        if consumer.is_alive():
            consumer.terminate()
        consumer.join()
    return consumer.exitcode or 0


def _consume(job: Job, address: Address, *, leash: ParentWatch, parent: int) -> None:
    """Celery's process."""
    leash.keep_reading()
    _end_with(parent)
    app = build_app(address)
    add_tasks(app, job, broker=CeleryBroker(address), leash=leash)
    worker = app.Worker(
        queues=[job.queue, name_recovery(job.queue)],
        concurrency=job.options.concurrency,
        pool="prefork",
        loglevel="WARNING",
        hostname=f"{job.queue}@{os.uname().nodename}-{os.getpid()}",
        quiet=True,
        without_gossip=True,
        without_mingle=True,
    )
    worker.start()
    sys.exit(worker.exitcode or 0)


def _end_with(parent: int) -> None:
    """Be told to go when the first process dies; where the system has no such thing, the leash tells the children."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
        if os.getppid() != parent:
            sys.exit(0)


async def _supervise(job: Job, address: Address, *, consumer: ForkProcess, leash: ParentWatch) -> None:
    with unwrapped():
        async with anyio.create_task_group() as group:
            await group.start(_obey_signals, consumer, leash)
            group.start_soon(_keep_sweeping, job, address)
            while consumer.is_alive():  # noqa: ASYNC110 - a process has no event to wait for
                await anyio.sleep(_LOOK_SECONDS)
            group.cancel_scope.cancel()


async def _obey_signals(consumer: ForkProcess, leash: ParentWatch, *, task_status: anyio.abc.TaskStatus[None]) -> None:
    """The first signal: no new messages, runs are handed back. The second: no patience, leases will run out."""
    with anyio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
        task_status.started()
        async for _ in signals:
            is_second = leash.writing < 0
            leash.pull()
            if consumer.pid is not None and consumer.is_alive():
                os.kill(consumer.pid, signal.SIGQUIT if is_second else signal.SIGTERM)


async def _keep_sweeping(job: Job, address: Address) -> None:
    broker = CeleryBroker(address)
    told = ""
    while True:
        try:
            async with open_runtime(job.host) as runtime:
                while True:
                    due_in = await sweep(runtime, job.queue, broker, report=job.report, fires=job.fires)
                    told = ""
                    await anyio.sleep(min(job.options.sweep_seconds, due_in))
        except (StoreError, BrokerUnavailable) as failure:
            if failure.message != told:  # once, however long it lasts
                told = failure.message
                job.report(f"sweep: {failure.sentence}")
        await anyio.sleep(job.options.sweep_seconds)
