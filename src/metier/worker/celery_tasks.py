"""The two tasks that a Celery worker knows. Both take the id of a run; what becomes of it is decided by the store."""

import os
import select
import signal
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, cast, override

import anyio
from celery import Task
from celery.exceptions import Reject, SoftTimeLimitExceeded
from celery.worker.request import Request
from msgspec.structs import replace

from metier.engine.state.run_state import RunState
from metier.errors import BrokerUnavailable, MetierError, unwrapped
from metier.runtime.queue.broker import Broker, name_recovery
from metier.runtime.queue.celery_broker import DRIVE, TIME_OUT, list_failures, send
from metier.runtime.queue.detached import can_go_on
from metier.runtime.queue.pool import Job, logger, work_on
from metier.runtime.runs import Runtime, open_runtime
from metier.runtime.workspace.plugins import using_plugins

GRACE_SECONDS = 5
"""Beside the grace period of a run, how long each limit waits for the one before it."""


# The processes of one worker share a pipe whose only writing end is held by the first of them. When that process
# closes it or dies, all others read its end.
@dataclass(slots=True)
class ParentWatch:
    reading: int
    writing: int

    @property
    def is_pulled(self) -> bool:
        return bool(select.select([self.reading], [], [], 0)[0])

    def keep_reading(self) -> None:
        """In every process but the first."""
        os.close(self.writing)
        self.writing = -1

    def pull(self) -> None:
        if self.writing >= 0:
            os.close(self.writing)
            self.writing = -1

    async def wait(self) -> None:
        await anyio.wait_readable(self.reading)


def open_leash() -> ParentWatch:
    reading, writing = os.pipe()
    return ParentWatch(reading, writing)


class _DriveRequest(Request):
    """Asks for the end of a run before Celery kills its process, which did not react to the soft limit.

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
            # The process is killed only if this returns. Its run is then taken up again, and counted as a try.
            logger.warning("run %s took too long, and the request to end it could not be sent: %s", run_id, error)


class _DriveTask(Task):
    Request = _DriveRequest


def add_tasks(app: Any, job: Job, *, broker: Broker, leash: ParentWatch) -> None:  # noqa: ANN401 - Celery has no types
    """Limits are one behind the other: the run's own, then an exception in the process, then its end."""
    grace = job.host.settings.runtime.signal_grace_seconds + GRACE_SECONDS
    soft = job.options.timeout_seconds + grace
    timed = replace(job, let_through=(SoftTimeLimitExceeded,))

    @app.task(name=DRIVE, base=_DriveTask, soft_time_limit=soft, time_limit=soft + grace)
    def drive(run_id: str) -> None:
        if leash.is_pulled:
            # The first process of this worker is gone, and this one should be.
            os.kill(os.getppid(), signal.SIGTERM)
            raise Reject("the worker is leaving", requeue=True)
        try:
            anyio.run(partial(drive_once, timed, run_id, broker=broker, leash=leash))
        except SoftTimeLimitExceeded:
            anyio.run(_with_runtime, job, _end_in_time(job, run_id))

    @app.task(name=TIME_OUT)
    def time_out(run_id: str) -> None:
        anyio.run(_with_runtime, job, _end_in_time(job, run_id))

    del drive, time_out  # the application keeps them


async def drive_once(job: Job, run_id: str, *, broker: Broker, leash: ParentWatch) -> None:
    """Drive a run until it ends or waits, or its turns are used up; then ask for the next worker."""

    async def work(runtime: Runtime) -> None:
        stopper = job.build_stopper()
        state: RunState | None = None

        async def obey_leash() -> None:
            await leash.wait()
            stopper.hand_back("the end of the worker")

        async with anyio.create_task_group() as group:
            group.start_soon(obey_leash)
            state = await work_on(job, runtime, run_id, stopper=stopper)
            group.cancel_scope.cancel()
        if state is not None and can_go_on(state):
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
    """Whatever is opened for a task is closed with it. A store that cannot be reached is for the sweeper to fix."""
    try:
        with unwrapped(), using_plugins(job.host, report=job.report) as host:
            async with open_runtime(host) as runtime:
                await work(runtime)
    except MetierError as failure:
        job.report(failure.sentence)
