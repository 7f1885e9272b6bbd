"""Drive runs of a queue in this process, a bounded number at a time, claimed from the store.

Nothing is kept here: a run whose process is killed has a lease that runs out, and any other process goes on with it.
"""

from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from math import inf

import anyio

from metier.engine.stopping import Stopper
from metier.errors import StoreError
from metier.runtime.notify.delivery import LOOK_SECONDS, deliver_due
from metier.runtime.queue.job import Job, work_on
from metier.runtime.queue.sweeper import sweep
from metier.runtime.runs import Runtime
from metier.store.base import Lease

IDLE_SECONDS = 0.5
"""How long a slot that found nothing waits before it looks again."""


@dataclass(slots=True)
class RunPool:
    job: Job
    runtime: Runtime
    slots: int
    is_leaving: bool = False
    _stoppers: set[Stopper] = field(default_factory=set[Stopper])
    """Those of the runs that are being driven, so that all can be handed back at once."""
    idle_seconds: float | None = None
    """Leave after so long without anything to do; None for a worker that stays."""
    _last_busy: float = 0.0
    _woken: anyio.Event = field(default_factory=anyio.Event)

    @property
    def busy(self) -> int:
        """How many runs are being driven."""
        return len(self._stoppers)

    def nudge(self) -> None:
        """Have idle slots look now: this process has put a run into the queue."""
        woken, self._woken = self._woken, anyio.Event()
        woken.set()

    def leave(self, reason: str) -> None:
        """Claim nothing more, and hand runs back after the step under way; a second time, at once."""
        self.is_leaving = True
        for stopper in self._stoppers:
            stopper.hand_back(reason)
        self.nudge()

    async def work(self, *, once: bool = False) -> None:
        """Until `leave`; with `once`, until there is nothing that can go on."""
        if once:
            await self._sweep()
        async with anyio.create_task_group() as helpers:
            if not once:
                helpers.start_soon(self._keep_sweeping)
                helpers.start_soon(self._keep_delivering)
            if self.idle_seconds is not None:
                helpers.start_soon(self._leave_when_idle, self.idle_seconds)
            async with anyio.create_task_group() as slots:
                for _ in range(self.slots):
                    slots.start_soon(partial(self._serve, once=once))
            helpers.cancel_scope.cancel()

    async def _serve(self, *, once: bool) -> None:
        while not self.is_leaving:
            lease = await self._claim()
            if lease is None and once:
                return
            if lease is None:
                await self._idle(IDLE_SECONDS)
                continue
            stopper = self.job.build_stopper()
            self._stoppers.add(stopper)
            try:
                state = await work_on(self.job, self.runtime, lease.run_id, stopper=stopper, lease=lease)
            finally:
                self._stoppers.discard(stopper)
            if state is None:
                await self._idle(IDLE_SECONDS)

    async def _leave_when_idle(self, seconds: float) -> None:
        self._last_busy = anyio.current_time()
        while not self.is_leaving:
            await anyio.sleep(min(IDLE_SECONDS, max(seconds, 0.01)))
            if self._stoppers:
                self._last_busy = anyio.current_time()
            elif anyio.current_time() - self._last_busy >= seconds:
                self.leave("nothing to do")

    async def _claim(self) -> Lease | None:
        try:
            return await self.runtime.store.claim_run(
                queue=self.job.queue, owner=self.runtime.place.owner, seconds=self.job.options.lease_seconds
            )
        except StoreError as failure:
            self.job.report(f"store: {failure.sentence}")
            return None

    async def _keep_sweeping(self) -> None:
        while not self.is_leaving:
            due_in = await self._sweep()
            with anyio.move_on_after(min(self.job.options.sweep_seconds, due_in)):
                while not self.is_leaving:
                    await self._woken.wait()

    async def _keep_delivering(self) -> None:
        """Beside the sweep: a receiver that is slow does not keep runs from going on."""
        while not self.is_leaving:
            await self._idle(LOOK_SECONDS)
            # An attempt that was begun is ended: half of it would count and be told twice.
            with anyio.CancelScope(shield=True), suppress(StoreError):
                await deliver_due(self.runtime.place, self.runtime.store)

    async def _sweep(self) -> float:
        """In how many seconds the next schedule is due."""
        try:
            return await sweep(self.runtime, self.job.queue, None, report=self.job.report, fires=self.job.fires)
        except StoreError as failure:
            self.job.report(f"sweep: {failure.sentence}")
            return inf

    async def _idle(self, seconds: float) -> None:
        with anyio.move_on_after(seconds):
            await self._woken.wait()
