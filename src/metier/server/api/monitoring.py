"""Health of the server and its queue, cost of runs, and metrics for Prometheus."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, NamedTuple

from fastapi import APIRouter, Query
from pydantic import Field, JsonValue
from starlette.responses import PlainTextResponse, Response

from metier.runtime.diagnosis import Finding
from metier.runtime.history.spending import parse_since, read_spending
from metier.server.api.bodies import Cost, ResponseBody, answer
from metier.server.metrics import render_metric
from metier.server.state import ServerState, State
from metier.store.base import RunSearch
from metier.store.usage import UNFINISHED, UsageTotal
from metier.telemetry.amounts import format_seconds
from metier.version import __version__
from metier.views.spending import Grouping, total_as_json

router = APIRouter()

_MAX_COUNTED = 10_000


class Health(ResponseBody):
    status: Annotated[str, Field(description="`ok` if the store answers.")]
    version: str


@router.get("/health", tags=["health"])
async def get_health(state: State) -> Health:
    """Check that the server reaches its store. Needs no token and reveals nothing about the workspace."""
    await state.runtime.store.list_runs(limit=1)
    return Health(status="ok", version=__version__)


MAX_WAIT_SECONDS = 600
"""If a run waits longer, there are too few workers."""


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
    # Never negative: workers write these times, and the clocks of their machines may be ahead.
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


@router.get("/cost", response_model=Cost, tags=["cost"])
async def get_cost(
    state: State,
    by: Annotated[Grouping, Query(description="Group by.")] = "model",
    since: Annotated[str, Query(max_length=40, description="24h, 7d, 4w, or a date such as 2026-01-31.")] = "7d",
) -> Response:
    """Return the usage of model calls of ended and waiting runs. `missing` of them are not counted yet."""
    started = parse_since(since, now=state.host.clock.now()) if since else None
    read = await read_spending(state.runtime, by, since=started)
    totals: list[JsonValue] = [total_as_json(total, name="name") for total in read.totals]
    return answer(
        state, {"by": by, "totals": totals, "runs": read.runs, "completed": read.completed, "missing": read.unrecorded}
    )


@router.get("/metrics", response_class=PlainTextResponse, tags=["cost"])
async def get_metrics(state: State) -> Response:
    """Return metrics in the text format of Prometheus."""
    text = "".join(f"{line}\n" for line in await _measure(state))
    # The version is that of the text format.
    return PlainTextResponse(text, media_type="text/plain; version=0.0.4; charset=utf-8")


async def _measure(state: ServerState) -> list[str]:
    store, pool = state.runtime.store, state.pool
    version = {f'{{version="{__version__}"}}': 1}
    unfinished = await store.usage.count_unfinished()
    by_status = {f'{{status="{status}"}}': unfinished.get(status, 0) for status in UNFINISHED}
    waiting = await store.list_approvals(status="open", limit=_MAX_COUNTED)
    queue = await read_queue(state)
    gauges: tuple[tuple[str, str, Mapping[str, object]], ...] = (
        ("metier_info", "The version of the server.", version),
        ("metier_runs", "Runs of the store that have not ended, by status.", by_status),
        ("metier_approvals_open", "Approvals that wait for a decision.", {"": len(waiting)}),
        ("metier_queue_waiting", "Runs of the queue that no process drives.", {"": queue.waiting}),
        ("metier_queue_lost", "Runs of the queue whose worker was lost.", {"": queue.lost}),
        (
            "metier_queue_oldest_seconds",
            "Age of the oldest waiting run of the queue.",
            {"": f"{queue.oldest_seconds:g}"},
        ),
        ("metier_pool_slots", "Runs that this process may drive at a time.", {"": pool.slots if pool else 0}),
        ("metier_pool_busy", "Runs that this process drives.", {"": pool.busy if pool else 0}),
        ("metier_watchers", "Event streams that are open.", {"": state.feed.watchers}),
        ("metier_watched_runs", "Runs that are watched.", {"": state.feed.watched}),
    )
    lines = [line for name, text, samples in gauges for line in render_metric(name, text, samples, kind="gauge")]
    return [*lines, *state.metrics.render(), *_render_usage(await store.usage.sum_by("model"))]


def _render_usage(totals: Sequence[UsageTotal]) -> Iterator[str]:
    """Render the totals of all processes. They never shrink, because the store keeps them when runs are deleted."""
    calls: dict[str, object] = {}
    tokens: dict[str, object] = {}
    cost: dict[str, object] = {}
    for name, amounts in totals:
        model = f'model="{_quote(name)}"'
        calls[f"{{{model}}}"] = amounts.calls
        kinds = {"input": amounts.input_tokens, "cached": amounts.cached_tokens, "output": amounts.output_tokens}
        tokens |= {f'{{{model},kind="{kind}"}}': count for kind, count in kinds.items()}
        cost[f"{{{model}}}"] = f"{amounts.cost_usd:.6f}"
    yield from render_metric("metier_model_calls_total", "Model calls of runs that ended or wait.", calls)
    yield from render_metric("metier_model_tokens_total", "Tokens of these calls; cached ones are also input.", tokens)
    yield from render_metric("metier_model_cost_usd_total", "Cost of these calls, where a price is known.", cost)


def _quote(label: str) -> str:
    # The text format has these three escapes. The backslash comes first, or it would escape the other two again.
    return label.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
