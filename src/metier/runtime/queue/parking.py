"""Taking a run out of its queue that no worker can open: what is wrong stands in the index, for a person to read.

A run that can be opened counts its tries in its journal (`lease_terms`). One whose journal or log is damaged cannot,
and reads the same at every try: it is parked at once.
"""

from contextlib import suppress

from metier.engine.loop import LEASE_SECONDS
from metier.errors import LogDamaged, MetierError
from metier.runtime.runs import Runtime
from metier.store.failures import (
    LeaseHeld,
    LeaseLost,
    RunUnknown,
    StoreDamaged,
    StoreFull,
    StoreUnavailable,
)

DAMAGE = (StoreDamaged, LogDamaged)
"""What another try cannot mend."""
NOT_OF_THE_RUN = (StoreUnavailable, StoreFull, LeaseHeld, LeaseLost, RunUnknown)
"""Failures of the place or of the moment, which say nothing of the run."""


async def park(runtime: Runtime, run_id: str, failure: MetierError | str) -> bool:
    """Leave the run to a person; False where another process has it, or the store cannot note it now."""
    sentence = failure if isinstance(failure, str) else failure.message
    with suppress(LeaseHeld, LeaseLost, RunUnknown, StoreUnavailable, StoreFull, StoreDamaged):
        lease = await runtime.store.take_lease(run_id, owner=runtime.place.owner, seconds=LEASE_SECONDS)
        try:
            # Without a queue no worker claims it and no sweep reads it again; resuming it puts the index right.
            await runtime.store.update_run(lease, {"status": "paused", "queue": "", "reason": sentence})
        finally:
            await runtime.store.release_lease(lease)
        return True
    return False


def describe_parked(run_id: str, failure: MetierError | str) -> str:
    """For the report of a worker."""
    sentence = failure if isinstance(failure, str) else failure.sentence
    return f"run {run_id}: {sentence}. It is parked; when that is mended, go on with `agent resume {run_id}`"
