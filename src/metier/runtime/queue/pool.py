"""The work of a worker: driving one run, a bounded pool of claimed runs, and the sweep for runs without a message."""

import dataclasses
import logging
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from math import inf

import anyio
from anyio.to_thread import run_sync
from msgspec import Struct, field

from metier.engine.state.run_state import RunState
from metier.engine.stopper import Stopper
from metier.errors import BrokerUnavailable, MetierError, StoreError
from metier.runtime.driver import DriveOptions
from metier.runtime.host import Host
from metier.runtime.notify.delivery import POLL_SECONDS, deliver_due
from metier.runtime.queue.broker import Broker, name_recovery
from metier.runtime.queue.detached import (
    DAMAGE,
    NOT_OF_THE_RUN,
    Stranded,
    describe_paused,
    drive_for_a_while,
    get_stranded,
    park,
    wake_decided,
)
from metier.runtime.queue.scheduler import fire_due
from metier.runtime.runs import Runtime
from metier.settings.sections import WorkerOptions
from metier.store.base import Lease
from metier.store.failures import LeaseHeld, RunUnknown, StoreUnavailable

logger = logging.getLogger("metier.worker")

IDLE_SECONDS = 0.5
"""Time that an idle slot waits before it tries to claim a run again."""


class Job(Struct, frozen=True, kw_only=True):
    host: Host
    report: Callable[[str], None]
    """Prints one line for each outcome and error."""
    fires: bool = True
    """True if it fires schedules. They belong to the queue of the settings, not to one given by a flag."""
    reraised: tuple[type[Exception], ...] = ()
    """Exceptions to raise to the caller, because they don't count against the run."""
    failures: Counter[str] = field(default_factory=Counter[str])
    """Number of consecutive failures of each run in this process."""
    _outages: set[type[MetierError]] = field(default_factory=set[type[MetierError]])
    """Failures of the store and broker that were reported and have not ended."""

    def report_outage(self, failure: StoreError | BrokerUnavailable, *, subject: str) -> None:
        """Report an outage once, not for every slot and attempt."""
        if type(failure) not in self._outages:
            self._outages.add(type(failure))
            self.report(f"{subject}: {failure.sentence}")

    def note_success(self) -> None:
        """Report the next outage again."""
        self._outages.clear()

    @property
    def options(self) -> WorkerOptions:
        return self.host.settings.worker

    @property
    def queue(self) -> str:
        return self.options.queue

    def build_stopper(self) -> Stopper:
        return Stopper(self.host.settings.runtime.signal_grace_seconds, turns=self.options.turns_per_task)


async def work_on(
    job: Job, runtime: Runtime, run_id: str, *, stopper: Stopper, lease: Lease | None = None
) -> RunState | None:
    """Drive a run for a while. Return None if another process drives it or it failed. No failure stops the worker."""
    try:
        watch = DriveOptions(stopper=stopper, report=job.report)
        state = await drive_for_a_while(runtime, run_id, job.options, watch=watch, lease=lease)
    except (LeaseHeld, RunUnknown):
        return None
    except MetierError as failure:
        await _give_up(job, runtime, run_id, failure=failure, lease=lease)
        return None
    except job.reraised:
        raise
    # A bug in one run must not end the worker, which drives other runs.
    except Exception as error:
        logger.exception("run %s", run_id)
        await _give_up(job, runtime, run_id, failure=f"Unexpected {type(error).__name__}", lease=lease)
        return None
    job.failures.pop(run_id, None)
    job.report(f"run {run_id}: {state.status}, turn {state.turn}")
    return state


async def _give_up(job: Job, runtime: Runtime, run_id: str, *, failure: MetierError | str, lease: Lease | None) -> None:
    """Handle a failure: report it, and pause the run if it is damaged or has failed repeatedly."""
    # A failure before the run was opened leaves the claimed lease in place, and `park` needs it free.
    if lease is not None:
        with suppress(StoreError):  # the lease may be lost or released already
            await runtime.store.release_lease(lease)
    sentence = failure if isinstance(failure, str) else failure.sentence
    if isinstance(failure, StoreUnavailable):
        job.report_outage(failure, subject="store")
        return
    if isinstance(failure, NOT_OF_THE_RUN):
        job.report(f"run {run_id}: {sentence}")
        return
    job.failures[run_id] += 1
    # A run whose journal can be opened fails by its own count, one attempt earlier; see `record_attempt`.
    is_last = isinstance(failure, DAMAGE) or job.failures[run_id] > job.options.max_attempts
    try:
        is_parked = is_last and await park(runtime, run_id, failure)
    except LeaseHeld:
        return
    if is_parked:
        job.failures.pop(run_id, None)
        job.report(describe_paused(run_id, failure))
        return
    job.report(f"run {run_id}: {sentence}; it is tried again")


async def sweep(
    runtime: Runtime, queue: str, broker: Broker | None, *, report: Callable[[str], None], fires: bool = True
) -> float:
    """Fire schedules, wake decided runs, deliver messages. Return the seconds until the next schedule is due.

    Raises `BrokerUnavailable` and `StoreError`.
    """
    seconds = await fire_schedules(runtime, report=report) if fires else inf
    # A command that records a decision may die before it wakes a worker.
    await wake_decided(runtime, queue, report=report)
    await deliver_due(runtime.host, runtime.store)
    if broker is None:
        return seconds  # workers without a broker claim the other runs themselves
    stranded = await get_stranded(runtime, queue)
    if stranded.orphans or stranded.waiting:
        await run_sync(_send, broker, queue, stranded)
    return seconds


async def fire_schedules(runtime: Runtime, *, report: Callable[[str], None]) -> float:
    """Start due schedules. Return the seconds until the next one, or infinity."""
    try:
        fired = await fire_due(runtime)
    except StoreError:
        raise
    except (MetierError, OSError) as error:  # such as a full disk; due schedules stay due
        told = error.sentence if isinstance(error, MetierError) else error.strerror or error
        report(f"schedules: {told}; they are looked at again")
        return inf
    for firing in fired.started:
        report(f"schedule {firing.name}: started run {firing.run_id}")
    for firing in fired.failed:
        report(f"schedule {firing.name}: no run was started: {firing.reason}")
    if fired.next_due is None:
        return inf
    return max(0.0, (fired.next_due - runtime.host.clock.now()).total_seconds())


def _send(broker: Broker, queue: str, stranded: Stranded) -> None:
    """Send wake-ups if the queue is empty. Otherwise its messages may already name these runs."""
    recovery = name_recovery(queue)
    if stranded.orphans and not broker.count_waiting(recovery):
        broker.wake(stranded.orphans, queue=recovery)
    if stranded.waiting and not broker.count_waiting(queue):
        broker.wake(stranded.waiting, queue=queue)


# The pool has no state of runs. If its process is killed, the leases expire and other processes resume the runs.
@dataclasses.dataclass(slots=True)
class RunPool:
    job: Job
    runtime: Runtime
    slots: int
    is_leaving: bool = False
    _stoppers: set[Stopper] = dataclasses.field(default_factory=set[Stopper])
    """Stoppers of the driven runs, to hand all of them back."""
    idle_seconds: float | None = None
    """Exit after this much idle time; None for a worker that stays."""
    _last_busy: float = 0.0
    _woken: anyio.Event = dataclasses.field(default_factory=anyio.Event)

    @property
    def busy(self) -> int:
        """Return the number of runs being driven."""
        return len(self._stoppers)

    def nudge(self) -> None:
        """Let idle slots claim now, because this process queued a run."""
        # An event of anyio can't be reset, so the next nudge gets a new one.
        woken, self._woken = self._woken, anyio.Event()
        woken.set()

    def leave(self, reason: str) -> None:
        """Stop claiming, and hand runs back after their current step; on a second call, immediately."""
        self.is_leaving = True
        for stopper in self._stoppers:
            stopper.hand_back(reason)
        self.nudge()

    async def work(self, *, once: bool = False) -> None:
        """Work until `leave` is called; with `once`, until no run can continue."""
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
            # Another process drives it, or it failed. Without a pause, this slot would claim the same run again and
            # again.
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
            lease = await self.runtime.store.claim_run(
                queue=self.job.queue, owner=self.runtime.host.owner, seconds=self.job.options.lease_seconds
            )
        except StoreError as failure:
            self.job.report_outage(failure, subject="store")
            return None
        self.job.note_success()
        return lease

    async def _keep_sweeping(self) -> None:
        while not self.is_leaving:
            due_in = await self._sweep()
            # A nudge also sets the event, but it is meant for idle slots. Only `leave` ends the wait early.
            with anyio.move_on_after(min(self.job.options.sweep_seconds, due_in)):
                while not self.is_leaving:
                    await self._woken.wait()

    async def _keep_delivering(self) -> None:
        """Deliver messages in parallel to the sweep, so that a slow receiver doesn't delay runs."""
        while not self.is_leaving:
            await self._idle(POLL_SECONDS)
            # Shielded: a canceled attempt would count as one and send its message twice. The sweep reports an
            # unavailable store.
            with anyio.CancelScope(shield=True), suppress(StoreError):
                await deliver_due(self.runtime.host, self.runtime.store)

    async def _sweep(self) -> float:
        """Sweep and return the seconds until the next schedule is due."""
        try:
            return await sweep(self.runtime, self.job.queue, None, report=self.job.report, fires=self.job.fires)
        except StoreError as failure:
            self.job.report_outage(failure, subject="sweep")
            return inf

    async def _idle(self, seconds: float) -> None:
        with anyio.move_on_after(seconds):
            await self._woken.wait()
