"""A worker's time with a run: how it begins, and how often one is tried before it counts as poison.

Tries are counted where they survive the worker: in the journal, before anything is built or called.
"""

from metier.dataclass import dataclass
from metier.engine import entries as e
from metier.engine.journal import RunLog
from metier.engine.loop import LEASE_SECONDS
from metier.engine.phases import FINAL
from metier.store.base import Lease, Store


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaseTerms:
    lease: Lease | None = None
    """The one that came with claiming the run; else one is taken."""
    lease_seconds: float = LEASE_SECONDS
    max_attempts: int | None = None
    """How many workers in a row may take the run without getting any further; None for a person, who may try on."""
    queue: str = ""
    """The queue that the run is left to when it is handed back; empty where it keeps the one it has."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaseHolder:
    """A process that writes into a run without driving it."""

    store: Store
    owner: str


async def begin_attempt(log: RunLog, shift: LeaseTerms) -> bool:
    """Write down that a worker tries, or that enough of them did; False where there was nothing to write.

    A run that waits or has ended is left as it is.
    """
    state = log.state
    if shift.max_attempts is None or state.started is None or state.pause is not None or state.phase in FINAL:
        return False
    if state.attempts >= shift.max_attempts:
        message = f"{state.attempts} workers in a row took the run and got no further"
        await log.record(e.RunFailed(reason="too_many_attempts", message=message), durable=True)
    else:
        await log.record(e.RunResumed(reason="taken by a worker", driver=log.lease.owner))
    return True


async def keep_claimable(log: RunLog, store: Store, *, queue: str = "") -> None:
    """Mark a run in the index as claimable: one released while it waits for a child has no pending request."""
    changes = {"status": "in_progress"} if log.state.status == "delegating" else {}
    if queue:
        changes["queue"] = queue
    if changes:
        await store.update_run(log.lease, changes)
