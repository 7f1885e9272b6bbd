"""A worker that takes runs from a Celery broker. It has three kinds of processes, none of which outlives the first:

- the first process handles signals and looks for runs that no message names (`runtime.queue.pool.sweep`),
- Celery's process takes messages,
- Celery's child processes drive one run each.

A message names a run and nothing else. The store decides whether that run can continue.
"""

import ctypes
import multiprocessing
import os
import select
import signal
import sys
from collections.abc import Awaitable, Callable
from functools import partial
from multiprocessing.context import ForkContext, ForkProcess
from typing import Any, cast, override

import anyio
from celery import Task
from celery.exceptions import Reject, SoftTimeLimitExceeded
from celery.worker.request import Request
from msgspec import Struct
from msgspec.structs import replace

from metier.engine.state.run_state import RunState
from metier.errors import BrokerUnavailable, MetierError, StoreError, unwrapped
from metier.runtime.queue.broker import Address, Broker, name_recovery
from metier.runtime.queue.celery_broker import DRIVE, TIME_OUT, CeleryBroker, build_app, list_failures, send
from metier.runtime.queue.detached import is_handed_back
from metier.runtime.queue.pool import Job, logger, sweep, work_on
from metier.runtime.runs import Runtime, open_runtime
from metier.runtime.workspace.plugins import using_plugins

_PR_SET_PDEATHSIG = 1
_POLL_SECONDS = 0.2
_GRACE_SECONDS = 5
"""Time between two limits of a task, in addition to the grace period of a run."""


# The processes of one worker share a pipe, and only the first process keeps the end for writing. When that process
# closes it or dies, the others read the end of the file, even after SIGKILL.
class ParentPipe(Struct):
    """A pipe that tells the processes of a worker that the first one stops or has died."""

    reading: int
    writing: int

    @property
    def is_closed(self) -> bool:
        return bool(select.select([self.reading], [], [], 0)[0])

    def close(self) -> None:
        """Close the end for writing: in the first process, this tells the others to stop."""
        if self.writing >= 0:
            os.close(self.writing)
            self.writing = -1

    async def wait(self) -> None:
        await anyio.wait_readable(self.reading)


def run_celery_worker(job: Job, address: Address) -> int:
    """Serve the queue until a signal arrives. Return the exit code of Celery."""
    pipe = ParentPipe(*os.pipe())
    # Fork, because the child processes must inherit the pipe. A process and not a thread, because Celery forks its own
    # process again for every child that it replaces, and such a fork would copy the thread's locks as they are.
    context: ForkContext = multiprocessing.get_context("fork")
    consumer = context.Process(
        target=_consume, args=(job, address), kwargs={"pipe": pipe, "parent": os.getpid()}, name="metier-consumer"
    )
    consumer.start()
    try:
        anyio.run(partial(_supervise, job, address, consumer=consumer, pipe=pipe))
    finally:
        pipe.close()
        if consumer.is_alive():
            consumer.terminate()
        consumer.join()
    return consumer.exitcode or 0


def _consume(job: Job, address: Address, *, pipe: ParentPipe, parent: int) -> None:
    """Run Celery in this process."""
    pipe.close()
    _end_with(parent)
    app = build_app(address)
    add_tasks(app, job, broker=CeleryBroker(address), pipe=pipe)
    worker = app.Worker(
        queues=[job.queue, name_recovery(job.queue)],
        concurrency=job.options.concurrency,
        pool="prefork",
        loglevel="WARNING",
        hostname=f"{job.queue}@{os.uname().nodename}-{os.getpid()}",
        quiet=True,
        # Workers need not know each other: the store decides which one drives a run.
        without_gossip=True,
        without_mingle=True,
    )
    worker.start()
    sys.exit(worker.exitcode or 0)


def _end_with(parent: int) -> None:
    """Stop this process when the first one dies. Without such a signal, as on macOS, the pipe tells the children."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
        # The first process may have died before the call above; then no signal follows.
        if os.getppid() != parent:
            sys.exit(0)


async def _supervise(job: Job, address: Address, *, consumer: ForkProcess, pipe: ParentPipe) -> None:
    with unwrapped():
        async with anyio.create_task_group() as group:
            await group.start(_obey_signals, consumer, pipe)
            group.start_soon(_keep_sweeping, job, address)
            while consumer.is_alive():  # noqa: ASYNC110 - a process has no event to wait for
                await anyio.sleep(_POLL_SECONDS)
            group.cancel_scope.cancel()


async def _obey_signals(consumer: ForkProcess, pipe: ParentPipe, *, task_status: anyio.abc.TaskStatus[None]) -> None:
    """On the first signal, take no more messages and hand runs back. On the second, exit; leases will expire."""
    with anyio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
        task_status.started()
        async for _ in signals:
            is_second = pipe.writing < 0
            pipe.close()
            if consumer.pid is not None and consumer.is_alive():
                os.kill(consumer.pid, signal.SIGQUIT if is_second else signal.SIGTERM)


async def _keep_sweeping(job: Job, address: Address) -> None:
    broker = CeleryBroker(address)
    while True:
        try:
            async with open_runtime(job.host) as runtime:
                while True:
                    due_in = await sweep(runtime, job.queue, broker, report=job.report, fires=job.fires)
                    job.note_success()
                    await anyio.sleep(min(job.options.sweep_seconds, due_in))
        except (StoreError, BrokerUnavailable) as failure:
            job.report_outage(failure, subject="sweep")
        await anyio.sleep(job.options.sweep_seconds)


class _DriveRequest(Request):
    """Requests the end of a run before Celery kills its process, which did not react to the soft limit.

    The request is sent before the kill, so that the next worker that claims the run finds the request first.
    """

    @override
    def on_timeout(self, soft: Any, timeout: Any) -> Any:
        request = cast(Any, self)
        cast(Any, super()).on_timeout(soft, timeout)
        if soft:
            return
        queue = str(request.delivery_info.get("routing_key") or "")
        (run_id,) = request.args
        try:
            send(request.app, TIME_OUT, run_id, queue=queue)
        except list_failures(request.app) as error:
            # Celery kills the process only if this returns. Another worker then claims the run, as a further attempt.
            logger.warning("run %s took too long, and the request to end it could not be sent: %s", run_id, error)


class _DriveTask(Task):
    Request = _DriveRequest


def add_tasks(app: Any, job: Job, *, broker: Broker, pipe: ParentPipe) -> None:  # noqa: ANN401 - Celery has no types
    """Add the tasks to the application. Both take the ID of a run.

    Three limits follow each other: the run's own timeout, then an exception in its process, then a kill.
    """
    grace = job.host.settings.runtime.signal_grace_seconds + _GRACE_SECONDS
    soft = job.options.timeout_seconds + grace
    timed = replace(job, reraised=(SoftTimeLimitExceeded,))

    @app.task(name=DRIVE, base=_DriveTask, soft_time_limit=soft, time_limit=soft + grace)
    def drive(run_id: str) -> None:
        if pipe.is_closed:
            # The first process of this worker has ended, so this one should too.
            os.kill(os.getppid(), signal.SIGTERM)
            raise Reject("the worker is leaving", requeue=True)
        try:
            anyio.run(partial(drive_once, timed, run_id, broker=broker, pipe=pipe))
        except SoftTimeLimitExceeded:
            anyio.run(_with_runtime, job, _end_in_time(job, run_id))

    @app.task(name=TIME_OUT)
    def time_out(run_id: str) -> None:
        anyio.run(_with_runtime, job, _end_in_time(job, run_id))

    del drive, time_out  # the application keeps them


async def drive_once(job: Job, run_id: str, *, broker: Broker, pipe: ParentPipe) -> None:
    """Drive a run until it ends or waits, or the task's turns are used up; then wake the next worker."""

    async def work(runtime: Runtime) -> None:
        stopper = job.build_stopper()
        state: RunState | None = None

        async def obey_parent() -> None:
            await pipe.wait()
            stopper.hand_back("the end of the worker")

        async with anyio.create_task_group() as group:
            group.start_soon(obey_parent)
            state = await work_on(job, runtime, run_id, stopper=stopper)
            group.cancel_scope.cancel()
        if state is not None and is_handed_back(state):
            queue = name_recovery(job.queue) if stopper.is_set else job.queue
            _wake(job, run_id, broker, queue=queue)

    await _with_runtime(job, work)


def _wake(job: Job, run_id: str, broker: Broker, *, queue: str) -> None:
    try:
        broker.wake([run_id], queue=queue)
    except BrokerUnavailable as failure:
        job.report(f"run {run_id}: {failure.sentence}")


def _end_in_time(job: Job, run_id: str) -> Callable[[Runtime], Awaitable[None]]:
    async def end(runtime: Runtime) -> None:
        state = await runtime.time_out(run_id, seconds=job.options.timeout_seconds)
        job.report(f"run {run_id}: {state.status}")

    return end


async def _with_runtime(job: Job, work: Callable[[Runtime], Awaitable[None]]) -> None:
    """Open a runtime for one task, and report an error. The sweep retries runs of an unavailable store."""
    try:
        with unwrapped(), using_plugins(job.host, report=job.report) as host:
            async with open_runtime(host) as runtime:
                await work(runtime)
    except MetierError as failure:
        job.report(failure.sentence)
