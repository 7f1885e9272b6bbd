"""What every kind of worker needs: where it works, for which queue, and how it takes one run for a while."""

import logging
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import field

from metier.dataclass import dataclass
from metier.engine.state import RunState
from metier.engine.stopping import Stopper
from metier.errors import MetierError, StoreError
from metier.runtime.host import Host
from metier.runtime.queue.detached import drive_for_a_while
from metier.runtime.queue.parking import DAMAGE, NOT_OF_THE_RUN, describe_parked, park
from metier.runtime.runs import Runtime, Watch
from metier.settings.worker_options import WorkerOptions
from metier.store.base import Lease
from metier.store.failures import LeaseHeld, RunUnknown

logger = logging.getLogger("metier.worker")


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    place: Host
    report: Callable[[str], None]
    """Told, in one line, what is taken, what came of it, and what goes wrong."""
    fires: bool = True
    """It fires schedules: they belong to the queue of the settings, not to one that a flag names."""
    let_through: tuple[type[Exception], ...] = ()
    """Failures that are no fault of the run: they are raised to the owner of the worker."""
    failures: Counter[str] = field(default_factory=Counter[str])
    """How often in a row each run went wrong in this process."""

    @property
    def options(self) -> WorkerOptions:
        return self.place.settings.worker

    @property
    def queue(self) -> str:
        return self.options.queue

    def build_stopper(self) -> Stopper:
        return Stopper(self.place.settings.runtime.signal_grace_seconds, turns=self.options.turns_per_task)


async def work_on(
    job: Job, runtime: Runtime, run_id: str, *, stopper: Stopper, lease: Lease | None = None
) -> RunState | None:
    """Drive a run for a while; None when another process has it, or it went wrong. One run never ends the worker."""
    try:
        watch = Watch(stopper=stopper, report=job.report)
        state = await drive_for_a_while(runtime, run_id, job.options, watch=watch, lease=lease)
    except (LeaseHeld, RunUnknown):
        return None
    except MetierError as failure:
        await _give_up(job, runtime, run_id, failure=failure, lease=lease)
        return None
    except job.let_through:
        raise
    except Exception as error:
        logger.exception("run %s", run_id)
        await _give_up(job, runtime, run_id, failure=f"Unexpected {type(error).__name__}", lease=lease)
        return None
    job.failures.pop(run_id, None)
    job.report(f"run {run_id}: {state.status}, turn {state.turn}")
    return state


async def _give_up(job: Job, runtime: Runtime, run_id: str, *, failure: MetierError | str, lease: Lease | None) -> None:
    """For this time, or for good: a damaged run at once, another one when it went wrong too often in a row."""
    if lease is not None:
        with suppress(StoreError):  # one that is lost, or given back already, stays so
            await runtime.store.release_lease(lease)
    sentence = failure if isinstance(failure, str) else failure.sentence
    if isinstance(failure, NOT_OF_THE_RUN):
        job.report(f"run {run_id}: {sentence}")
        return
    job.failures[run_id] += 1
    # The journal of a run that can be opened ends it one try earlier, see `lease_terms`.
    is_last = isinstance(failure, DAMAGE) or job.failures[run_id] > job.options.max_attempts
    if is_last and await park(runtime, run_id, failure):
        job.failures.pop(run_id, None)
        job.report(describe_parked(run_id, failure))
        return
    job.report(f"run {run_id}: {sentence}; it is tried again")
