"""What every kind of worker needs: where it works, for which queue, and how it takes one run for a while."""

import logging
from collections.abc import Callable
from dataclasses import dataclass

from metier.engine.state import RunState
from metier.engine.stopping import Stopper
from metier.errors import MetierError
from metier.runtime.host import Host
from metier.runtime.queue.detached import drive_for_a_while
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
        job.report(f"run {run_id}: {failure.sentence}")
        return None
    except job.let_through:
        raise
    except Exception as error:
        logger.exception("run %s", run_id)
        job.report(f"run {run_id}: Unexpected {type(error).__name__}; it is tried again")
        return None
    job.report(f"run {run_id}: {state.status}, turn {state.turn}")
    return state
