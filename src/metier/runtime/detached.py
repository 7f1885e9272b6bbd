"""Runs that are left to workers: begin one, take an answer for one, drive one for a while, find those nobody drives.

The store knows all of it. Whoever drives a run holds its lease; whoever does not, only writes down what was decided.
"""

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

from metier.engine.phases import FINAL
from metier.engine.state import RunState
from metier.engine.stopping import Stopper
from metier.runtime.runs import Answer, RunRequest, Runtime, Watch
from metier.runtime.shift import Shift
from metier.settings.worker_options import WorkerOptions
from metier.store.base import RUNNABLE, Lease
from metier.store.failures import LeaseHeld

_MOST_LOOKED_AT = 1000
"""Runs that one sweep looks at, oldest first."""


async def submit(runtime: Runtime, request: RunRequest, *, queue: str) -> RunState:
    """Begin a run, with everything it is pinned to, and leave it to the workers of a queue."""
    return await runtime.start(request, Watch(stopper=_left_to_workers()), queue=queue)


async def wake(runtime: Runtime, run_id: str, answer: Answer | None = None) -> RunState:
    """Take in what was answered or approved, so that a worker can go on. Raises `LeaseHeld` while somebody drives."""
    return await runtime.resume(run_id, answer, Watch(stopper=_left_to_workers()))


async def drive_for_a_while(
    runtime: Runtime, run_id: str, options: WorkerOptions, *, watch: Watch, lease: Lease | None = None
) -> RunState:
    """Drive until the run ends or waits, the turns of a task are used up, or `watch.stopper` hands it back.

    Raises `LeaseHeld` when somebody else drives it, `LeaseLost` when somebody took it over meanwhile.
    """
    shift = Shift(lease=lease, lease_seconds=options.lease_seconds, max_attempts=options.max_attempts)
    timed = replace(watch, shift=shift, timeout_seconds=options.timeout_seconds)
    return await runtime.resume(run_id, watch=timed)


def can_go_on(state: RunState) -> bool:
    """A worker handed it back: somebody should go on with it."""
    return state.status in RUNNABLE and state.phase not in FINAL


@dataclass(frozen=True, slots=True, kw_only=True)
class Stranded:
    """Runs that can go on and that nobody drives."""

    orphans: Sequence[str] = ()
    """Their worker died."""
    waiting: Sequence[str] = ()
    """Nobody took them yet, or somebody handed them back."""


async def find_stranded(runtime: Runtime, queue: str) -> Stranded:
    rows = await runtime.store.list_stale(queue=queue, limit=_MOST_LOOKED_AT)
    return Stranded(
        orphans=[row.run_id for row in rows if row.left_by],
        waiting=[row.run_id for row in rows if not row.left_by],
    )


async def wake_decided(runtime: Runtime, queue: str) -> list[str]:
    """Wake runs whose approvals were decided, or ran out of time, without anybody telling a worker."""
    paused = await runtime.store.list_runs(status="paused", limit=_MOST_LOOKED_AT)
    mine = [row.run_id for row in paused if row.queue == queue and not row.driver]
    if not mine:
        return []
    # Looking closes what is past its time.
    still_open = {question.row.run_id for question in await runtime.approvals.find_all(status="open")}
    woken: list[str] = []
    for run_id in mine:
        if run_id in still_open or not await _waits_for_approval(runtime, run_id):
            continue
        with suppress(LeaseHeld):
            if can_go_on(await wake(runtime, run_id)):
                woken.append(run_id)
    return woken


async def _waits_for_approval(runtime: Runtime, run_id: str) -> bool:
    if not await runtime.store.list_approvals(run_id=run_id):
        return False
    pause = (await runtime.read(run_id)).pause
    return pause is not None and pause.pause == "approval"


def _left_to_workers() -> Stopper:
    stopper = Stopper()
    stopper.hand_back("a queue of workers")
    return stopper
