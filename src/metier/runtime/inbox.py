"""Everything that waits for a user, over all runs of a workspace: approvals, questions, doubts, failures, limits."""

from collections.abc import AsyncGenerator
from datetime import datetime, timedelta
from typing import Literal

from msgspec import Struct

from metier.decisions import TaskState
from metier.engine.state.run_state import RunState
from metier.ids import CHILD
from metier.runtime.child_runs import get_cause
from metier.runtime.questions.approval_questions import ApprovalQuestion
from metier.runtime.questions.resumption import Limit, can_reopen, find_limit, suggest_limit
from metier.runtime.runs import Runtime
from metier.store.base import ENDED, RunRow
from metier.store.failures import StoreDamaged

LOOK_BACK = timedelta(days=7)
"""How long a run that reached a limit is shown as waiting: it has ended, and may never continue."""
MOST_RUNS = 200
"""Of each kind."""

_WAITING: tuple[TaskState, ...] = ("input_required", "paused", "failed", "timeout", "escalated")

type WaitKind = Literal["input", "in_doubt", "step_failed", "changed_code", "stopped", "limit"]


class WaitingRun(Struct, frozen=True, kw_only=True):
    """A run that continues when a user says something, beside those that wait for an approval."""

    row: RunRow
    state: RunState
    kind: WaitKind
    reason: str
    cause: str = ""
    """What a step that failed gave back."""
    limit: Limit | None = None
    suggested: float = 0.0
    """What the limit would be raised to: twice what was allowed."""


class Inbox(Struct, frozen=True, kw_only=True):
    approvals: tuple[ApprovalQuestion, ...]
    """Oldest first."""
    runs: tuple[WaitingRun, ...]
    """Newest first."""

    def __len__(self) -> int:
        return len(self.approvals) + len(self.runs)


async def read_inbox(runtime: Runtime) -> Inbox:
    """What waits now. An approval that ran out of time is closed on the way."""
    approvals = await runtime.approvals.find_all(status="open")
    asking = frozenset(question.row.run_id for question in approvals)
    found = [run async for run in _list_waiting(runtime, asking)]
    return Inbox(approvals=tuple(approvals), runs=tuple(sorted(found, key=lambda run: -run.row.number)))


async def count_waiting(runtime: Runtime) -> int:
    """How many, without reading a journal: runs that reached a limit are left out."""
    rows = await runtime.store.list_approvals(status="open", limit=MOST_RUNS)
    asking = await runtime.store.list_runs(status="input_required", limit=MOST_RUNS)
    paused = await runtime.store.list_runs(status="paused", limit=MOST_RUNS)
    return len(rows) + len(asking) + len({row.run_id for row in paused} - {row.run_id for row in rows})


async def find_waiting_run(runtime: Runtime, row: RunRow) -> WaitingRun | None:
    """Return what this run waits for; None if it waits for an approval or for nothing."""
    if row.status not in _WAITING or await runtime.store.list_approvals(run_id=row.run_id, status="open", limit=1):
        return None
    return await _look(runtime, row, since=runtime.place.clock.now() - LOOK_BACK)


async def _list_waiting(runtime: Runtime, asking: frozenset[str]) -> AsyncGenerator[WaitingRun]:
    since = runtime.place.clock.now() - LOOK_BACK
    for status in _WAITING:
        for row in await runtime.store.list_runs(status=status, limit=MOST_RUNS):
            found = None if row.run_id in asking else await _look(runtime, row, since=since)
            if found is not None:
                yield found


async def _look(runtime: Runtime, row: RunRow, *, since: datetime) -> WaitingRun | None:
    """Nothing where the run waits for a child run, is about to continue, or has ended for good."""
    is_ended = row.status in ENDED
    # A child run that a limit ended is continued with through the run above it.
    if is_ended and (row.updated_at < since or row.run_id.startswith(CHILD)):
        return None
    try:
        state = await runtime.read(row.run_id)
    except StoreDamaged as failure:  # of one run; what else waits is shown all the same
        empty = RunState(run_id=row.run_id)
        return None if is_ended else WaitingRun(row=row, state=empty, kind="stopped", reason=failure.sentence)
    if is_ended:
        limit = find_limit(state)
        if limit is None or not can_reopen(state) or state.failure is None:
            return None
        reason, suggested = state.failure.message, suggest_limit(state, limit)
        return WaitingRun(row=row, state=state, kind="limit", reason=reason, limit=limit, suggested=suggested)
    # One of a queue whose approval is decided continues by itself; another one needs a user who says so.
    is_decided = state.pause is not None and state.pause.pause == "approval" and bool(row.queue)
    if state.pause is None or state.pause.pause == "delegation" or is_decided or row.driver:
        return None
    kind: WaitKind = "stopped"
    if state.pause.pause in ("input", "in_doubt", "step_failed", "changed_code"):
        kind = state.pause.pause
    return WaitingRun(row=row, state=state, kind=kind, reason=state.pause.reason, cause=get_cause(state))
