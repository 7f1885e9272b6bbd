"""The inbox of a workspace: everything that waits for the user. Approvals, questions, interrupted and failed steps,
and runs that reached a limit.
"""

from collections.abc import AsyncGenerator
from datetime import datetime, timedelta

from msgspec import Struct

from metier.decisions import TaskState
from metier.engine.entries.run import RunPaused
from metier.engine.state.run_state import RunState
from metier.ids import CHILD
from metier.runtime.approval_questions import ApprovalQuestion
from metier.runtime.runs import Runtime
from metier.runtime.status import RunStatus, compute_status
from metier.store.base import ENDED, RunRow
from metier.store.failures import StoreDamaged

LOOK_BACK = timedelta(days=7)
"""Time for which a run that reached a limit is shown. It has ended, and the user may never continue it."""
MAX_RUNS = 200
"""Maximum number of runs of each kind."""

_WAITING: tuple[TaskState, ...] = ("input_required", "paused", "failed", "timeout", "escalated")


class Inbox(Struct, frozen=True, kw_only=True):
    approvals: tuple[ApprovalQuestion, ...]
    """Pending approvals, oldest first."""
    runs: tuple[RunStatus, ...]
    """Waiting runs, newest first."""

    def __len__(self) -> int:
        return len(self.approvals) + len(self.runs)


async def read_inbox(runtime: Runtime) -> Inbox:
    """Read everything that waits now. This closes expired approvals."""
    approvals = await runtime.approvals.list_all(status="open")
    asking = frozenset(question.row.run_id for question in approvals)
    found = [run async for run in _list_waiting(runtime, asking)]
    return Inbox(approvals=tuple(approvals), runs=tuple(sorted(found, key=lambda run: -run.row.number)))


async def count_waiting(runtime: Runtime) -> int:
    """Count waiting runs without reading a journal; runs that reached a limit are not included."""
    rows = await runtime.store.list_approvals(status="open", limit=MAX_RUNS)
    asking = await runtime.store.list_runs(status="input_required", limit=MAX_RUNS)
    paused = await runtime.store.list_runs(status="paused", limit=MAX_RUNS)
    return len(rows) + len(asking) + len({row.run_id for row in paused} - {row.run_id for row in rows})


async def find_waiting_run(runtime: Runtime, row: RunRow) -> RunStatus | None:
    """Return the status of a waiting run; None if it doesn't wait, or if its approval is listed already."""
    if row.status not in _WAITING or await runtime.store.list_approvals(run_id=row.run_id, status="open", limit=1):
        return None
    return await _find_waiting(runtime, row, since=runtime.host.clock.now() - LOOK_BACK)


async def _list_waiting(runtime: Runtime, asking: frozenset[str]) -> AsyncGenerator[RunStatus]:
    since = runtime.host.clock.now() - LOOK_BACK
    for status in _WAITING:
        for row in await runtime.store.list_runs(status=status, limit=MAX_RUNS):
            found = None if row.run_id in asking else await _find_waiting(runtime, row, since=since)
            if found is not None:
                yield found


async def _find_waiting(runtime: Runtime, row: RunRow, *, since: datetime) -> RunStatus | None:
    """Return the status; None if the user has nothing to do: the run waits for a child, continues, or has ended."""
    is_ended = row.status in ENDED
    # A child that reached a limit is continued through its parent, which is listed instead.
    if is_ended and (row.updated_at < since or row.run_id.startswith(CHILD)):
        return None
    try:
        state = await runtime.read(row.run_id)
    except StoreDamaged as failure:  # show the other runs even if one journal is damaged
        pause = RunPaused(pause="explicit", reason=failure.sentence)
        return None if is_ended else compute_status(row, RunState(run_id=row.run_id, pause=pause))
    status = compute_status(row, state)
    if is_ended:
        return status if status.wait_kind == "limit" else None
    # A queued run whose approval is decided continues by itself; any other one needs a user to resume it.
    is_decided = status.pause == "approval" and bool(row.queue)
    is_waiting = bool(status.pause) and status.pause != "delegation"
    return status if is_waiting and not is_decided and not row.driver else None
