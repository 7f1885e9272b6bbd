"""What runs used and cost, and the same as metrics in Prometheus text."""

from typing import Annotated, get_args

from fastapi import APIRouter, Query
from pydantic import JsonValue
from starlette.responses import PlainTextResponse, Response

from metier.runtime.history.spending import parse_since, read_spent
from metier.server.api.answers import answer
from metier.server.idempotency import Document
from metier.server.state import ServerState, State
from metier.task_state import TaskState
from metier.version import __version__
from metier.views.spending import Grouping, Total, sum_up

router = APIRouter(tags=["cost"])

_MOST_COUNTED = 10_000
_STATUSES: tuple[TaskState, ...] = get_args(TaskState.__value__)


@router.get("/cost", response_model=dict[str, JsonValue])
async def get_cost(
    state: State,
    by: Annotated[Grouping, Query(description="What is added up.")] = "model",
    since: Annotated[str, Query(max_length=40, description="24h, 7d, 4w, or a date such as 2026-01-31.")] = "7d",
) -> Response:
    """What the runs that began since then used; `missing` of them have no event log here."""
    begun = parse_since(since, now=state.host.clock.now()) if since else None
    read = await read_spent(state.runtime, begun)
    totals: list[JsonValue] = [_as_item(total) for total in sum_up(read.spent, by)]
    return answer(
        state, {"by": by, "totals": totals, "runs": read.runs, "completed": read.completed, "missing": read.missing}
    )


@router.get("/metrics", response_class=PlainTextResponse)
async def get_metrics(state: State) -> Response:
    """For Prometheus."""
    text = "".join(f"{line}\n" for line in await _measure(state))
    return PlainTextResponse(text, media_type="text/plain; version=0.0.4; charset=utf-8")


async def _measure(state: ServerState) -> list[str]:
    store, pool = state.runtime.store, state.pool
    lines = [
        "# HELP metier_info The version of the server.",
        "# TYPE metier_info gauge",
        f'metier_info{{version="{__version__}"}} 1',
        "# HELP metier_runs Runs of the store that have not ended, by status.",
        "# TYPE metier_runs gauge",
    ]
    for status in _STATUSES:
        if status in ("completed", "failed", "timeout", "escalated", "canceled"):
            continue
        rows = await store.list_runs(status=status, limit=_MOST_COUNTED)
        lines.append(f'metier_runs{{status="{status}"}} {len(rows)}')
    waiting = await store.list_approvals(status="open", limit=_MOST_COUNTED)
    stale = await store.list_stale(queue=state.queue, limit=_MOST_COUNTED)
    for name, text, value in (
        ("metier_approvals_open", "Approvals that wait for a decision.", len(waiting)),
        ("metier_queue_waiting", "Runs of the queue that no process drives.", len(stale)),
        ("metier_pool_slots", "Runs that this process may drive at a time.", pool.slots if pool else 0),
        ("metier_pool_busy", "Runs that this process drives.", pool.busy if pool else 0),
        ("metier_watchers", "Event streams that are open.", state.feed.watchers),
        ("metier_watched_runs", "Runs that are watched.", state.feed.watched),
    ):
        lines += [f"# HELP {name} {text}", f"# TYPE {name} gauge", f"{name} {value}"]
    return lines


def _as_item(total: Total) -> Document:
    usage = total.usage
    return {
        "name": total.name,
        "calls": total.calls,
        "input_tokens": usage.input_tokens,
        "cached_tokens": usage.cached_tokens,
        "output_tokens": usage.output_tokens,
        "cost_usd": None if usage.known_cost_usd is None else round(usage.cost_usd, 6),
        "known_cost_usd": round(usage.cost_usd, 6),
        "calls_of_unknown_cost": usage.unpriced_calls,
    }
