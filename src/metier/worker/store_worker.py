"""A worker without a broker: it claims runs from the store, several at a time in one process."""

import signal
import sys
from dataclasses import dataclass, field
from functools import partial

import anyio

from metier.engine.stopping import Stopper
from metier.engine.unwrapping import unwrapped
from metier.errors import StoreError
from metier.runtime.runs import Runtime, open_runtime
from metier.runtime.workspace.plugins import using_plugins
from metier.store.base import Lease
from metier.worker.job import Job, work_on
from metier.worker.sweeper import sweep

IDLE_SECONDS = 0.5
"""How long a slot that found nothing waits before it looks again."""


@dataclass(slots=True)
class _Crew:
    """The runs that are being driven, so that all can be handed back at once."""

    leaving: anyio.Event = field(default_factory=anyio.Event)
    stoppers: set[Stopper] = field(default_factory=set[Stopper])

    def leave(self, reason: str) -> None:
        self.leaving.set()
        for stopper in self.stoppers:
            stopper.hand_back(reason)

    async def idle(self, seconds: float) -> None:
        with anyio.move_on_after(seconds):
            await self.leaving.wait()


def run_store_worker(job: Job, *, once: bool = False) -> None:
    """Drive what is in the queue until a signal comes; with `once`, until there is nothing that can go on."""
    anyio.run(partial(work_from_store, job, once=once))


async def work_from_store(job: Job, *, once: bool = False) -> None:
    crew = _Crew()
    with unwrapped(), using_plugins(job.place, report=job.report) as place:
        async with open_runtime(place) as runtime, anyio.create_task_group() as helpers:
            await helpers.start(_obey_signals, crew)
            if once:
                await _sweep(job, runtime)
            else:
                helpers.start_soon(_keep_sweeping, job, runtime, crew)
            async with anyio.create_task_group() as slots:
                for _ in range(job.options.concurrency):
                    slots.start_soon(partial(_serve, job, runtime, crew=crew, once=once))
            helpers.cancel_scope.cancel()


async def _serve(job: Job, runtime: Runtime, *, crew: _Crew, once: bool) -> None:
    while not crew.leaving.is_set():
        lease = await _claim(job, runtime)
        if lease is None and once:
            return
        if lease is None:
            await crew.idle(IDLE_SECONDS)
            continue
        stopper = job.build_stopper()
        crew.stoppers.add(stopper)
        try:
            state = await work_on(job, runtime, lease.run_id, stopper=stopper, lease=lease)
        finally:
            crew.stoppers.discard(stopper)
        if state is None:
            await crew.idle(IDLE_SECONDS)


async def _claim(job: Job, runtime: Runtime) -> Lease | None:
    try:
        return await runtime.store.claim_run(
            queue=job.queue, owner=runtime.place.owner, seconds=job.options.lease_seconds
        )
    except StoreError as failure:
        job.report(f"store: {failure.sentence}")
        return None


async def _keep_sweeping(job: Job, runtime: Runtime, crew: _Crew) -> None:
    while True:
        await _sweep(job, runtime)
        await crew.idle(job.options.sweep_seconds)
        if crew.leaving.is_set():
            return


async def _sweep(job: Job, runtime: Runtime) -> None:
    try:
        await sweep(runtime, job.queue, None)
    except StoreError as failure:
        job.report(f"sweep: {failure.sentence}")


async def _obey_signals(crew: _Crew, *, task_status: anyio.abc.TaskStatus[None]) -> None:
    """The first signal lets steps that are under way end in their grace period, the second does not."""
    if sys.platform == "win32":
        task_status.started()
        return
    with anyio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
        task_status.started()
        async for number in signals:
            crew.leave(signal.Signals(number).name)
