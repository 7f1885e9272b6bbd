"""A worker's terms for driving a run: its lease, and how many attempts the run gets.

Attempts are recorded in the journal before anything is built or called, so that they survive the worker. A run that
kills its worker (by a hang, or by using up memory) also interrupts the worker's other runs, so it gets fewer attempts.
"""

from msgspec import Struct

from metier.engine.entries.run import TAKEN_BY_WORKER, RunFailed, RunPaused, RunResumed
from metier.engine.journal import RunLog
from metier.engine.loop import LEASE_SECONDS
from metier.engine.state.phases import FINAL
from metier.engine.state.run_state import RunState
from metier.store.base import Lease, Store


class LeaseTerms(Struct, frozen=True, kw_only=True):
    lease: Lease | None = None
    """Lease acquired by claiming the run; None acquires a new one."""
    lease_seconds: float = LEASE_SECONDS
    max_attempts: int | None = None
    """Maximum number of consecutive attempts without progress; None for a user, who may always retry."""
    max_deaths: int = 2
    """Number of workers that may die at the same point before the run waits for the user."""
    is_pooled: bool = False
    """True if the driving process delivers notifications for all of its runs."""
    queue: str = ""
    """Queue that the run is handed back to; empty keeps the current one."""


class LeaseHolder(Struct, frozen=True, kw_only=True):
    """A process that writes into a run without driving it."""

    store: Store
    owner: str


async def record_attempt(log: RunLog, terms: LeaseTerms) -> bool:
    """Record a worker's attempt, or that the run has had too many. Return False if nothing was recorded.

    A run that waits or has ended stays unchanged.
    """
    state, left_by = log.state, log.lease.left_by
    if terms.max_attempts is None or state.started is None or state.pause is not None or state.phase in FINAL:
        return False
    if state.deaths + bool(left_by) >= terms.max_deaths:
        await log.record(RunPaused(pause="explicit", reason=_describe_deaths(log)))
    elif state.attempts >= terms.max_attempts:
        message = f"{state.attempts} workers in a row took the run and got no further"
        await log.record(RunFailed(reason="too_many_attempts", message=message))
    else:
        resumed = RunResumed(reason=TAKEN_BY_WORKER, driver=log.lease.owner, left_by=left_by)
        await log.record(resumed)
    return True


def is_left_to_user(state: RunState, terms: LeaseTerms) -> bool:
    """Return True for a worker if only the user may resume the run."""
    return terms.max_attempts is not None and state.pause is not None and state.pause.pause == "explicit"


def _describe_deaths(log: RunLog) -> str:
    started, count = log.state.started, log.state.deaths + bool(log.lease.left_by)
    owner = (started.parent_run_id if started else "") or log.state.run_id
    died = f"{count} processes in a row died" if count > 1 else "A process died"
    return f"{died} driving the run at this point. Workers leave it alone; continue it with `agent resume {owner}`"


async def mark_claimable(log: RunLog, store: Store, *, queue: str = "") -> None:
    """Mark a handed-back run in the index as claimable, even if it waits for a child run."""
    changes = {"status": "in_progress"} if log.state.status == "delegating" else {}
    if queue:
        changes["queue"] = queue
    if changes:
        await store.update_run(log.lease, changes)
