"""Background runs: submit, answer and drive them, and find those without a driver.

All state is in the store. The driver of a run holds its lease; other processes only record answers and decisions.
"""

from collections.abc import Callable, Sequence
from contextlib import suppress

from msgspec import Struct
from msgspec.structs import replace

from metier.decisions import TaskState
from metier.engine.loop import LEASE_SECONDS
from metier.engine.state.phases import FINAL
from metier.engine.state.run_state import RunState
from metier.engine.stopper import Stopper
from metier.errors import LogDamaged, MetierError
from metier.runtime.answers import Answer
from metier.runtime.driver import DriveOptions, LeaseTerms
from metier.runtime.requests import RunRequest
from metier.runtime.runs import Runtime
from metier.settings.sections import WorkerOptions
from metier.store.base import RUNNABLE, Lease, RunRow
from metier.store.failures import (
    LeaseHeld,
    LeaseLost,
    RunUnknown,
    StoreDamaged,
    StoreFull,
    StoreUnavailable,
)

DAMAGE = (StoreDamaged, LogDamaged)
"""Failures that another attempt can't fix."""
NOT_OF_THE_RUN = (StoreUnavailable, StoreFull, LeaseHeld, LeaseLost, RunUnknown)
"""Temporary failures, or failures of the host, which don't count against the run."""

_MAX_LOOKED_AT = 1000
"""Maximum number of runs that one sweep examines, oldest first."""


# A run counts its attempts in its journal (`record_attempt`). One with a damaged journal or log can't be opened to do
# so, and fails the same way at every attempt, so it is paused at once.
async def park(runtime: Runtime, run_id: str, failure: MetierError | str) -> bool:
    """Pause the run and remove it from its queue. Return False if the store can't record that now.

    Raises `LeaseHeld` if another driver claimed the run meanwhile. That one finds the same damage and reports it.
    """
    sentence = failure if isinstance(failure, str) else failure.message
    with suppress(LeaseLost, RunUnknown, StoreUnavailable, StoreFull, StoreDamaged):
        lease = await runtime.store.take_lease(run_id, owner=runtime.host.owner, seconds=LEASE_SECONDS)
        try:
            # Without a queue, no worker claims it and no sweep reads it again. Resuming the run corrects the index.
            await runtime.store.update_run(lease, {"status": "paused", "queue": "", "reason": sentence})
        finally:
            await runtime.store.release_lease(lease)
        return True
    return False


def describe_paused(run_id: str, failure: MetierError | str) -> str:
    """Describe a paused run for a worker's report."""
    sentence = failure if isinstance(failure, str) else failure.sentence
    return f"run {run_id}: {sentence}. The run is paused. Fix the problem, then run `agent resume {run_id}`"


async def submit(runtime: Runtime, request: RunRequest, *, queue: str) -> RunState:
    """Create a run with all its pins, and leave it to the workers of a queue."""
    # Written here and not by a worker: the user sees wrong settings at once, and workers need none of the flags.
    return await runtime.start(request, leave_to_workers(queue), queue=queue)


async def wake(
    runtime: Runtime, run_id: str, answer: Answer | None = None, *, queue: str = "", terms: LeaseTerms | None = None
) -> RunState:
    """Record an answer or a decision, so that a worker can continue. Raises `LeaseHeld` while a process drives the run.

    The answer is for the run that waits: this one or a descendant. With a `queue`, its workers continue the run even if
    the user drove it so far. `terms` limits the attempts if a worker calls this and not the user.
    """
    waiting = await runtime.get_waiting(await runtime.read(run_id))
    if waiting.run_id != run_id:
        await runtime.resume(waiting.run_id, answer, leave_to_workers(terms=terms))
        # The descendant has the answer. This run only needs its author and the accepted code.
        answer = Answer(by=answer.by, accepts_changed_skills=answer.accepts_changed_skills) if answer else None
    return await runtime.resume(run_id, answer, leave_to_workers(queue, terms=terms))


async def drive_for_a_while(
    runtime: Runtime, run_id: str, options: WorkerOptions, *, watch: DriveOptions, lease: Lease | None = None
) -> RunState:
    """Drive a run until it ends or waits, uses up `turns_per_task`, or `watch.stopper` hands it back.

    Raises `LeaseHeld` if another process drives it, `LeaseLost` if another process took it over meanwhile.
    """
    terms = LeaseTerms(
        lease=lease,
        lease_seconds=options.lease_seconds,
        max_attempts=options.max_attempts,
        max_deaths=options.max_deaths,
        is_pooled=True,
    )
    timed = replace(watch, lease_terms=terms, timeout_seconds=options.timeout_seconds)
    return await runtime.resume(run_id, options=timed)


def is_handed_back(state: RunState) -> bool:
    """Return True if a worker handed the run back, so that another one can continue it."""
    return state.status in (*RUNNABLE, "delegating") and state.phase not in FINAL


class Stranded(Struct, frozen=True, kw_only=True):
    """Runs without a driver that can continue."""

    orphans: Sequence[str] = ()
    """Runs whose worker died."""
    waiting: Sequence[str] = ()
    """Runs that no worker has claimed yet, or that a worker handed back."""


async def get_stranded(runtime: Runtime, queue: str) -> Stranded:
    rows = await runtime.store.list_stale(queue=queue, limit=_MAX_LOOKED_AT)
    return Stranded(
        orphans=[row.run_id for row in rows if row.left_by],
        waiting=[row.run_id for row in rows if not row.left_by],
    )


async def wake_decided(
    runtime: Runtime, queue: str, *, report: Callable[[str], None] = lambda _told: None
) -> list[str]:
    """Wake runs whose approvals were decided or expired, if no worker was told."""
    # Also `delegating` runs: the approval may be for a child, and children belong to no queue.
    rows = [*await _list_paused(runtime, queue, "paused"), *await _list_paused(runtime, queue, "delegating")]
    now = runtime.host.clock.now()
    woken: list[str] = []
    for row in rows:
        approvals = await runtime.store.list_approvals(run_id=row.run_id, status="open")
        if any(approval.expires_at is None or approval.expires_at > now for approval in approvals):
            continue
        try:
            if await _wake_answered(runtime, row):
                woken.append(row.run_id)
        except DAMAGE as failure:  # a damaged run must not keep the others waiting
            with suppress(LeaseHeld):
                if await park(runtime, row.run_id, failure):
                    report(describe_paused(row.run_id, failure))
    return woken


async def _wake_answered(runtime: Runtime, row: RunRow) -> bool:
    waiting = await runtime.list_all_waiting(await runtime.read(row.run_id))
    if not any([await _is_answered(runtime, each, left_by=row.left_by) for each in waiting]):
        return False
    options = runtime.host.settings.worker
    terms = LeaseTerms(max_attempts=options.max_attempts, max_deaths=options.max_deaths)
    with suppress(LeaseHeld):
        return is_handed_back(await wake(runtime, row.run_id, terms=terms))
    return False


async def _list_paused(runtime: Runtime, queue: str, status: TaskState) -> list[RunRow]:
    """List all runs with this status that have no driver. All pages, so that long waits don't hide newer runs."""
    paused: list[RunRow] = []
    last = 0
    while page := await runtime.store.list_runs(status=status, queue=queue, before=last, limit=_MAX_LOOKED_AT):
        paused += [row for row in page if not row.driver]
        last = page[-1].number
    return paused


async def _is_answered(runtime: Runtime, waiting: RunState, *, left_by: str) -> bool:
    """Return True if the run can continue: the user has decided, or the worker that waited for a child died."""
    pause = waiting.pause
    # A worker that stops pauses child runs by a signal, so these may continue. A run without a parent was stopped by a
    # user.
    if pause is None or pause.pause in ("signal", "delegation"):
        return bool(left_by) or waiting.started is None or waiting.started.parent_run_id != ""
    if pause.pause != "approval":
        return False
    asking = {step.approval_id: step.step_id for step in waiting.steps if step.phase == "asking"}
    # Listing the decisions also closes expired approvals.
    return bool(await runtime.approvals.list_decisions(waiting.run_id, asking))


def leave_to_workers(queue: str = "", *, terms: LeaseTerms | None = None) -> DriveOptions:
    """Build options that record answers without driving the run, and hand it back to this queue or its own."""
    stopper = Stopper()
    stopper.hand_back("a queue of workers")
    return DriveOptions(stopper=stopper, lease_terms=replace(terms or LeaseTerms(), queue=queue))
