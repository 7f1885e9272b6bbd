"""Health of the server: whether it answers, and whether runs wait for a worker."""

from typing import Annotated, NamedTuple

from fastapi import APIRouter
from pydantic import Field

from metier.runtime.diagnosis import Finding
from metier.server.api.responses import ResponseBody
from metier.server.state import ServerState, State
from metier.store.base import RunSearch
from metier.version import __version__
from metier.views.closing import format_seconds

router = APIRouter(tags=["health"])


class Health(ResponseBody):
    status: Annotated[str, Field(description="`ok` if the store answers.")]
    version: str


@router.get("/health")
async def get_health(state: State) -> Health:
    """Check that the server reaches its store. Needs no token and reveals nothing about the workspace."""
    await state.runtime.store.list_runs(limit=1)
    return Health(status="ok", version=__version__)


MAX_WAIT_SECONDS = 600
"""If a run waits longer, there are too few workers."""
_MAX_COUNTED = 10_000


class QueueHealth(NamedTuple):
    waiting: int
    """Runs in the queue that no process drives."""
    lost: int
    """Those of them that lost their worker."""
    oldest_seconds: float
    """Time since the last change of the run that has waited the longest; 0 if none waits."""
    finding: Finding


async def read_queue(state: ServerState) -> QueueHealth:
    """Check this server's queue."""
    store = state.runtime.store
    rows = await store.list_stale(queue=state.queue, limit=_MAX_COUNTED)
    now = state.host.clock.now()
    oldest = max((max(0.0, (now - row.updated_at).total_seconds()) for row in rows), default=0.0)
    lost = sum(bool(row.left_by) for row in rows)
    # Idle workers leave no trace in the store, so only those that drive a run are seen.
    driven = await store.search_runs(RunSearch(statuses=("in_progress", "delegating")), limit=_MAX_COUNTED)
    has_worker = state.pool is not None or any(row.driver and row.queue == state.queue for row in driven)
    finding = _build_finding(len(rows), oldest, lost=lost, has_worker=has_worker)
    return QueueHealth(waiting=len(rows), lost=lost, oldest_seconds=oldest, finding=finding)


def _build_finding(waiting: int, oldest: float, *, lost: int, has_worker: bool) -> Finding:
    if not waiting:
        return Finding(area="runs", name="queue", state="ok", detail="No run is waiting for a worker")
    runs = f"{waiting:,} {'run is' if waiting == 1 else 'runs are'} waiting for a worker"
    detail = f"{runs}, the oldest for {format_seconds(oldest)}"
    if lost:
        detail += f"; {lost:,} lost {'its' if lost == 1 else 'their'} worker"
    if not has_worker:
        hint = "Start a worker: agent worker"
        return Finding(area="runs", name="queue", state="problem", detail=f"No worker is running: {detail}", hint=hint)
    if oldest > MAX_WAIT_SECONDS:
        hint = "Start more workers, or raise worker.concurrency"
        return Finding(area="runs", name="queue", state="problem", detail=detail, hint=hint)
    return Finding(area="runs", name="queue", state="ok", detail=detail)
