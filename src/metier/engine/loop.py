"""The loop of a run. `drive` starts it, continues it after an answer, recovers it after a crash, and replays it."""

from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager, nullcontext, suppress
from typing import Protocol

import anyio
from msgspec import Struct

from metier.engine.actions import Action, CallModel, Decode, Proceed, Wait
from metier.engine.decide import decide
from metier.engine.entries.entry import Entry
from metier.engine.entries.run import RunFailed, RunPaused
from metier.engine.journal import RunLog
from metier.engine.perform import perform
from metier.engine.projection import project
from metier.engine.services import Services
from metier.engine.state.fold import apply
from metier.engine.state.run_state import RunState
from metier.engine.stopper import Stopper
from metier.store.base import Lease, Store, keep_renewed
from metier.store.failures import StoreFull
from metier.telemetry.sinks import EventWriter

LEASE_SECONDS = 15.0
"""Time after which another process may take over a run whose driver is gone."""
BEAT_SECONDS = 5.0
"""Interval of renewals: two may fail before the lease expires."""
_INSTANT_ACTIONS = (Decode, Proceed)
"""Actions that finish at once, so that they need no cancel scope."""


type Perform = Callable[[Action, RunLog, Services], Awaitable[None]]
"""Carries out one action: `perform` for real, a replay from the recording."""


async def drive(log: RunLog, services: Services, stopper: Stopper, *, perform: Perform = perform) -> RunState:
    """Decide and perform until the run ends, waits for a user or a child, or is asked to stop."""
    last_turn = None if stopper.turns is None else log.state.turn + stopper.turns
    stopper.attach(log.emit, count_children=lambda: sum(step.phase == "running" for step in log.state.steps))
    while not (stopper.is_set or log.is_disk_full):
        action = decide(log.state, services.policy)
        if isinstance(action, Wait) or _exceeds_turns(action, last_turn):
            await log.record()
            return log.state
        try:
            with nullcontext() if isinstance(action, _INSTANT_ACTIONS) else stopper.interruptible():
                await perform(action, log, services)
        except StoreFull:
            # Recorded entries are valid; the next driver continues after the last one.
            log.is_disk_full = True
    # Shielded: the entry that pauses or fails the run must be written even if this task is being cancelled.
    with anyio.CancelScope(shield=True):
        ending = _build_ending(log, stopper)
        if ending is not None and log.state.phase not in ("DONE", "ERROR") and log.state.pause is None:
            await log.record(ending)
        else:
            await log.record()
    return log.state


def _exceeds_turns(action: Action, last_turn: int | None) -> bool:
    """Return True if the action would start a turn beyond this driver's limit."""
    return last_turn is not None and isinstance(action, CallModel) and action.turn > last_turn


def _build_ending(log: RunLog, stopper: Stopper) -> RunPaused | RunFailed | None:
    if log.is_disk_full:
        return RunPaused(pause="storage", reason="The disk of the run store is full; free some space, then resume")
    return stopper.ending


class Driver(Protocol):
    """The run's driver and store; implemented by `Services`."""

    @property
    def store(self) -> Store: ...

    @property
    def owner(self) -> str: ...


class LogPosition(Struct, frozen=True):
    """Position of an event log in its journal: the last entry with events in the log, and their number."""

    entry: int = 0
    events: int = 0


async def open_log(
    lease: Lease, services: Driver, writer: EventWriter, *, entries: Iterable[Entry], position: LogPosition
) -> RunLog:
    """Fold the journal, and emit the events that are missing in the log because the last driver was killed."""
    state = RunState(lease.run_id)
    for entry in entries:
        apply(state, entry)
        if state.seq < position.entry:
            continue
        # The driver may have died between two events of one entry.
        for payload in project(entry, state)[position.events if state.seq == position.entry else 0 :]:
            writer.emit(payload, entry=state.seq, turn=state.turn, skill=state.skill)
    return RunLog(state, store=services.store, lease=lease, writer=writer)


class LeaseKeeper(Struct, frozen=True, kw_only=True):
    """Renews the lease of a run immediately, for a process that is about to be suspended."""

    lease: Lease
    store: Store
    seconds: float = LEASE_SECONDS

    async def keep(self, seconds: float | None) -> None:
        """Renew the lease. Raises `LeaseLost`."""
        await self.store.renew_lease(self.lease, seconds=self.seconds if seconds is None else seconds)


@asynccontextmanager
async def hold_lease(
    run_id: str, services: Driver, *, seconds: float = LEASE_SECONDS, held: Lease | None = None
) -> AsyncGenerator[Lease]:
    """Hold the lease during this block. Losing the run to another driver cancels the block.

    `held` is a lease that the caller already has. Raises `LeaseHeld`, `RunUnknown`, `LeaseLost`.
    """
    store = services.store
    lease = held or await store.take_lease(run_id, owner=services.owner, seconds=seconds)
    # The same ratio for other lease times.
    every = seconds * BEAT_SECONDS / LEASE_SECONDS
    try:
        async with keep_renewed(lambda: store.renew_lease(lease, seconds=seconds), every_seconds=every):
            yield lease
    finally:
        # If the release fails, the lease expires by itself.
        with anyio.CancelScope(shield=True), suppress(StoreFull):
            await store.release_lease(lease)
