"""Runs that a program outside began: driven here in the background, watched, and handed back when the door closes.

There is no state of its own in here: what a run is is in its journal, and another process can continue with it.
"""

import logging
from collections.abc import Awaitable, Callable, Sequence

import anyio
from anyio.abc import TaskGroup
from msgspec.structs import replace

from metier.engine.state.phases import FINAL
from metier.engine.state.run_state import RunState
from metier.engine.stopper import Stopper
from metier.errors import MetierError, UsageError
from metier.events.record import EventRecord
from metier.providers.base import Observer
from metier.runtime.driver import DriveOptions
from metier.runtime.lease_terms import LeaseTerms
from metier.runtime.questions.answers import Answer
from metier.runtime.questions.approval_questions import Asker
from metier.runtime.requests import RunRequest
from metier.runtime.runs import Runtime
from metier.store.base import RUNNABLE
from metier.telemetry.sinks import Sink
from metier.views.fold import fold
from metier.views.run_view import RunView, StepView

logger = logging.getLogger("metier.protocols")

MAX_DRIVEN = 16
"""Runs that one process drives at a time for its peers; beyond that a peer is refused."""


class Drive:
    """One run while this process drives it. A sink of its events."""

    def __init__(self, stopper: Stopper, *, run_id: str = "") -> None:
        self.stopper = stopper
        self.run_id = run_id
        self.view = RunView()
        self.state: RunState | None = None
        self.failure: Exception | None = None
        """Why it could not be driven; nothing where it came to rest."""
        self.ended = anyio.Event()
        self._begun = anyio.Event()
        self._changed = anyio.Event()

    def write(self, record: EventRecord) -> None:
        self.run_id = self.run_id or record.run_id
        self.view = fold(self.view, record)
        self._begun.set()
        self._announce()

    def close(self) -> None:
        """As a sink: the runs below write into it too, so that its end is `ended`."""

    async def wait_begun(self) -> None:
        """Until the run is in the store; raises what kept it from beginning."""
        await self._begun.wait()
        if not self.run_id and self.failure is not None:
            raise self.failure

    async def wait_changed(self) -> None:
        """Until there is one more event, or the end."""
        if not self.ended.is_set():
            await self._changed.wait()

    async def drive(self, work: Callable[[], Awaitable[RunState]]) -> None:
        try:
            self.state = await work()
        except Exception as failure:
            self.failure = failure
            if not isinstance(failure, MetierError):
                logger.exception("run %s", self.run_id)
        finally:
            self.ended.set()
            self._begun.set()
            self._announce()

    def _announce(self) -> None:
        changed, self._changed = self._changed, anyio.Event()
        changed.set()


class DrivenRuns:
    """The runs that this process drives for its peers."""

    def __init__(self, runtime: Runtime, group: TaskGroup, *, report: Callable[[str], None]) -> None:
        self.runtime = runtime
        self._group = group
        self._report = report
        self._drives: dict[str, Drive] = {}
        self._pending = 0
        """Runs that are about to begin and have no id yet."""
        self._is_closed = False

    def find(self, run_id: str) -> Drive | None:
        """The drive that is under way, if there is one."""
        drive = self._drives.get(run_id)
        return drive if drive is not None and not drive.ended.is_set() else None

    async def begin(
        self,
        request: RunRequest,
        *,
        sinks: Sequence[Sink] = (),
        observe: Observer | None = None,
        ask: Asker | None = None,
    ) -> Drive:
        """Begin a run and drive it. Returns when it is in the store, durable. Raises what kept it from beginning.

        Workers of the queue may claim it where this process ends before the run does.
        """
        self._check_room()
        drive = self._build_drive()
        watch = self._build_watch(drive, sinks=sinks, observe=observe, ask=ask)
        queue = self.runtime.host.settings.worker.queue
        self._pending += 1
        try:
            self._group.start_soon(drive.drive, lambda: self.runtime.start(request, watch, queue=queue))
            await drive.wait_begun()
        finally:
            self._pending -= 1
        self._keep(drive)
        return drive

    async def go_on(
        self, run_id: str, answer: Answer | None = None, *, ask: Asker | None = None, shift: LeaseTerms | None = None
    ) -> Drive:
        """Drive a run further: after an answer, an approval, or the end of the process that drove it.

        One that is under way here is returned as it is. Where another process drives it, `failure` is `LeaseHeld`.
        """
        while (drive := self.find(run_id)) is not None:
            if answer is None:
                return drive
            # The run waits already, and its drive is about to pause or end: an answer must not be lost to that.
            await drive.ended.wait()
        self._check_room()
        drive = self._build_drive(run_id)
        watch = replace(self._build_watch(drive, ask=ask), lease_terms=shift or LeaseTerms())
        self._keep(drive)
        self._group.start_soon(drive.drive, lambda: self.runtime.resume(run_id, answer, watch))
        return drive

    async def claim(self, run_id: str) -> None:
        """Continue with a run that can, and that no process drives. Nothing where it waits for a user."""
        if self._is_closed or self.find(run_id) is not None:
            return
        row = await self.runtime.find(run_id)
        if not row.driver and await self._can_go_on(row.run_id) and self._count() < MAX_DRIVEN:
            # No user asked for it: a run that kills its drivers is left alone after a few tries, as by workers.
            options = self.runtime.host.settings.worker
            shift = LeaseTerms(max_attempts=options.max_attempts, max_deaths=options.max_deaths)
            await self.go_on(run_id, shift=shift)

    async def close(self) -> None:
        """Hand every run back, so that a worker or the next process continues with it."""
        self._is_closed = True
        for drive in list(self._drives.values()):
            drive.stopper.hand_back("the program that began it")
        for drive in list(self._drives.values()):
            await drive.ended.wait()

    async def _can_go_on(self, run_id: str) -> bool:
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
        return Drive(Stopper(grace, waits_for_model=False), run_id=run_id)

    def _build_watch(
        self, drive: Drive, *, sinks: Sequence[Sink] = (), observe: Observer | None = None, ask: Asker | None = None
    ) -> DriveOptions:
        return DriveOptions(sinks=(drive, *sinks), observe=observe, stopper=drive.stopper, ask=ask, report=self._report)

    def _keep(self, drive: Drive) -> None:
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
    """Those of the run and of the runs below it."""
    return [*view.steps, *(step for child in view.children for step in list_steps(child))]
