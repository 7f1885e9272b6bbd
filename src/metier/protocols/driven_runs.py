"""Runs that a client program started: driven in the background, watched, and released on shutdown.

Nothing here is durable. A run's state is its journal, so another process can continue it.
"""

import logging
from collections.abc import Awaitable, Callable

import anyio
from anyio.abc import TaskGroup
from msgspec.structs import replace

from metier.engine.state.phases import FINAL
from metier.engine.state.run_state import RunState
from metier.engine.stopper import Stopper
from metier.errors import MetierError, UsageError
from metier.events.record import EventRecord
from metier.runtime.answers import Answer
from metier.runtime.driver import DriveOptions, LeaseTerms
from metier.runtime.requests import RunRequest
from metier.runtime.runs import Runtime
from metier.store.base import RUNNABLE
from metier.views.fold import fold
from metier.views.run_view import RunView, StepView

logger = logging.getLogger("metier.protocols")

MAX_DRIVEN = 16
"""Runs that one process drives for clients at a time. Further requests are refused."""


class Drive:
    """A run that this process drives. A sink of its events."""

    def __init__(self, stopper: Stopper, *, run_id: str = "") -> None:
        self.stopper = stopper
        self.run_id = run_id
        self.view = RunView()
        self.state: RunState | None = None
        self.failure: Exception | None = None
        """Why it could not be driven; None if it ended or paused."""
        self.ended = anyio.Event()
        self._started = anyio.Event()
        self._changed = anyio.Event()

    def write(self, record: EventRecord) -> None:
        self.run_id = self.run_id or record.run_id
        self.view = fold(self.view, record)
        self._started.set()
        self._announce()

    def close(self) -> None:
        """Do nothing: child runs write into the same sink. `ended` marks the end."""

    async def wait_started(self) -> None:
        """Wait until the run is in the store. Raises the error if it could not start."""
        await self._started.wait()
        if not self.run_id and self.failure is not None:
            raise self.failure

    async def wait_changed(self) -> None:
        """Wait for the next event or the end."""
        if not self.ended.is_set():
            await self._changed.wait()

    async def drive(self, work: Callable[[], Awaitable[RunState]]) -> None:
        try:
            self.state = await work()
        except Exception as failure:
            # Kept for those who wait: raising would cancel the task group, and with it all other runs.
            self.failure = failure
            if not isinstance(failure, MetierError):
                logger.exception("run %s", self.run_id)
        finally:
            self.ended.set()
            self._started.set()
            self._announce()

    def _announce(self) -> None:
        # An event cannot be cleared, so each change wakes the waiters of the old one and leaves a new one.
        changed, self._changed = self._changed, anyio.Event()
        changed.set()


class DrivenRuns:
    """The runs that this process drives for clients."""

    def __init__(self, runtime: Runtime, group: TaskGroup, *, report: Callable[[str], None]) -> None:
        self.runtime = runtime
        self._group = group
        self._report = report
        self._drives: dict[str, Drive] = {}
        self._pending = 0
        """Number of runs that are starting and have no ID yet."""
        self._is_closed = False

    def find(self, run_id: str) -> Drive | None:
        """Return the run if this process drives it now."""
        drive = self._drives.get(run_id)
        return drive if drive is not None and not drive.ended.is_set() else None

    async def start(self, request: RunRequest) -> Drive:
        """Start a run and drive it. Returns when it is durable in the store. Raises the error if it could not start.

        Workers may claim it if this process ends before the run does.
        """
        self._check_room()
        drive = self._build_drive()
        options = self._build_options(drive)
        queue = self.runtime.host.settings.worker.queue
        self._pending += 1
        try:
            self._group.start_soon(drive.drive, lambda: self.runtime.start(request, options, queue=queue))
            await drive.wait_started()
        finally:
            self._pending -= 1
        self._add(drive)
        return drive

    async def resume(self, run_id: str, answer: Answer | None = None, *, terms: LeaseTerms | None = None) -> Drive:
        """Continue a run after an answer, an approval, or the death of its driver.

        A run that is driven here is returned as it is. If another process drives it, `failure` is `LeaseHeld`.
        """
        while (drive := self.find(run_id)) is not None:
            if answer is None:
                return drive
            # The run waits, but its drive has not returned yet. An answer must not be lost in this gap.
            await drive.ended.wait()
        self._check_room()
        drive = self._build_drive(run_id)
        options = replace(self._build_options(drive), lease_terms=terms or LeaseTerms())
        self._add(drive)
        self._group.start_soon(drive.drive, lambda: self.runtime.resume(run_id, answer, options))
        return drive

    async def claim(self, run_id: str) -> None:
        """Continue a run that has no driver and doesn't wait for a user."""
        if self._is_closed or self.find(run_id) is not None:
            return
        row = await self.runtime.find(run_id)
        if not row.driver and await self._can_continue(row.run_id) and self._count() < MAX_DRIVEN:
            # No user asked for it, so a run that kills its drivers is given up after a few attempts, as by workers.
            options = self.runtime.host.settings.worker
            terms = LeaseTerms(max_attempts=options.max_attempts, max_deaths=options.max_deaths)
            await self.resume(run_id, terms=terms)

    async def close(self) -> None:
        """Release every run, so that a worker or the next process continues it."""
        self._is_closed = True
        for drive in list(self._drives.values()):
            # All are asked before the first is awaited, so that they stop at the same time.
            drive.stopper.hand_back("the program that started it")
        for drive in list(self._drives.values()):
            await drive.ended.wait()

    async def _can_continue(self, run_id: str) -> bool:
        state = await self.runtime.read(run_id)
        if state.phase in FINAL or state.started is None:
            return False
        waiting = await self.runtime.get_waiting(state)
        if waiting.pause is None:
            return state.status in (*RUNNABLE, "delegating")
        if waiting.pause.pause != "approval":
            return waiting.pause.pause in ("signal", "delegation")
        asking = {step.approval_id: step.step_id for step in waiting.steps if step.phase == "asking"}
        return bool(await self.runtime.approvals.list_decisions(waiting.run_id, asking))

    def _build_drive(self, run_id: str = "") -> Drive:
        grace = self.runtime.host.settings.runtime.signal_grace_seconds
        # Another process continues a released run, so its model call is not waited for.
        return Drive(Stopper(grace, waits_for_model=False), run_id=run_id)

    def _build_options(self, drive: Drive) -> DriveOptions:
        return DriveOptions(sinks=(drive,), stopper=drive.stopper, report=self._report)

    def _add(self, drive: Drive) -> None:
        self._drives = {run_id: each for run_id, each in self._drives.items() if not each.ended.is_set()}
        self._drives[drive.run_id] = drive

    def _count(self) -> int:
        return sum(not drive.ended.is_set() for drive in self._drives.values()) + self._pending

    def _check_room(self) -> None:
        driven = self._count()
        if self._is_closed or driven >= MAX_DRIVEN:
            raise UsageError(
                f"{driven} runs are in progress, the maximum at a time" if driven else "The server is shutting down",
                hint="Wait until one of them has ended",
            )


def list_steps(view: RunView) -> list[StepView]:
    """List the steps of the run and of its children."""
    return [*view.steps, *(step for child in view.children for step in list_steps(child))]
