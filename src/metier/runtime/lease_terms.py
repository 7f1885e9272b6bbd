"""A worker's terms for a run: the start of an attempt, and the number of attempts before a run counts as poison.

Tries are counted where they survive the worker: in the journal, before anything is built or called. A run whose drivers
die (it hangs the process, or uses up its memory) takes other runs of the process with it, so it has fewer tries.
"""

from msgspec import Struct

from metier.engine.entries.run import RunFailed, RunPaused, RunResumed
from metier.engine.journal import RunLog
from metier.engine.loop import LEASE_SECONDS
from metier.engine.state.phases import FINAL
from metier.engine.state.run_state import RunState
from metier.store.base import Lease, Store


class LeaseTerms(Struct, frozen=True, kw_only=True):
    lease: Lease | None = None
    """The lease acquired by claiming the run; otherwise a new one is acquired."""
    lease_seconds: float = LEASE_SECONDS
    max_attempts: int | None = None
    """Maximum number of workers in a row that may take the run without progress; None for a user, who may retry."""
    max_deaths: int = 2
    """Maximum number of workers that may die at the same point before the run waits for a user."""
    is_pooled: bool = False
    """Whether the driving process delivers notifications for all of its runs."""
    queue: str = ""
    """Queue for the run when it is handed back; empty keeps the current one."""


class LeaseHolder(Struct, frozen=True, kw_only=True):
    """A process that writes into a run without driving it."""

    store: Store
    owner: str


async def record_attempt(log: RunLog, terms: LeaseTerms) -> bool:
    """Record a worker's attempt, or that there were enough of them; False if nothing was recorded.

    A run that waits or has ended is left as it is.
    """
    state, left_by = log.state, log.lease.left_by
    if terms.max_attempts is None or state.started is None or state.pause is not None or state.phase in FINAL:
        return False
    if state.deaths + bool(left_by) >= terms.max_deaths:
        await log.record(RunPaused(pause="explicit", reason=_describe_deaths(log)), durable=True)
    elif state.attempts >= terms.max_attempts:
        message = f"{state.attempts} workers in a row took the run and got no further"
        await log.record(RunFailed(reason="too_many_attempts", message=message), durable=True)
    else:
        resumed = RunResumed(reason="taken by a worker", driver=log.lease.owner, left_by=left_by)
        # Not synced: an attempt that a crash of the machine erases doesn't count against the run.
        await log.record(resumed)
    return True


def is_left_to_user(state: RunState, terms: LeaseTerms) -> bool:
    """Return True if the run waits for a user to resume it and a worker holds it."""
    return terms.max_attempts is not None and state.pause is not None and state.pause.pause == "explicit"


def _describe_deaths(log: RunLog) -> str:
    started, count = log.state.started, log.state.deaths + bool(log.lease.left_by)
    owner = (started.parent_run_id if started else "") or log.state.run_id
    died = f"{count} processes in a row died" if count > 1 else "A process died"
    return f"{died} driving the run at this point. Workers leave it alone; continue it with `agent resume {owner}`"


async def mark_claimable(log: RunLog, store: Store, *, queue: str = "") -> None:
    """Mark a run in the index as claimable: one released while it waits for a child has no pending request."""
    changes = {"status": "in_progress"} if log.state.status == "delegating" else {}
    if queue:
        changes["queue"] = queue
    if changes:
        await store.update_run(log.lease, changes)
