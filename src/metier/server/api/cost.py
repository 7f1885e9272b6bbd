"""Usage and cost of runs, and metrics for Prometheus."""

from collections.abc import Iterator, Sequence
from typing import Annotated

from fastapi import APIRouter, Query
from pydantic import JsonValue
from starlette.responses import PlainTextResponse, Response

from metier.runtime.history.spending import parse_since, read_spending
from metier.server.api.bodies import answer
from metier.server.api.health import read_queue
from metier.server.api.responses import Cost
from metier.server.idempotency import Document
from metier.server.state import ServerState, State
from metier.store.usage import UNFINISHED, UsageTotal
from metier.version import __version__
from metier.views.spending import Grouping, Total

router = APIRouter(tags=["cost"])

_MAX_COUNTED = 10_000


@router.get("/cost", response_model=Cost)
async def get_cost(
    state: State,
    by: Annotated[Grouping, Query(description="Group by.")] = "model",
    since: Annotated[str, Query(max_length=40, description="24h, 7d, 4w, or a date such as 2026-01-31.")] = "7d",
) -> Response:
    """Return the usage of model calls of ended and waiting runs. `missing` ended runs are not counted yet."""
    started = parse_since(since, now=state.host.clock.now()) if since else None
    read = await read_spending(state.runtime, by, since=started)
    totals: list[JsonValue] = [_as_item(total) for total in read.totals]
    return answer(
        state, {"by": by, "totals": totals, "runs": read.runs, "completed": read.completed, "missing": read.unrecorded}
    )


@router.get("/metrics", response_class=PlainTextResponse)
async def get_metrics(state: State) -> Response:
    """Return metrics in the text format of Prometheus."""
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
    unfinished = await store.usage.count_unfinished()
    lines += [f'metier_runs{{status="{status}"}} {unfinished.get(status, 0)}' for status in UNFINISHED]
    waiting = await store.list_approvals(status="open", limit=_MAX_COUNTED)
    queue = await read_queue(state)
    for name, text, value in (
        ("metier_approvals_open", "Approvals that wait for a decision.", len(waiting)),
        ("metier_queue_waiting", "Runs of the queue that no process drives.", queue.waiting),
        ("metier_queue_lost", "Runs of the queue whose worker was lost.", queue.lost),
        ("metier_queue_oldest_seconds", "Age of the oldest waiting run of the queue.", f"{queue.oldest_seconds:g}"),
        ("metier_pool_slots", "Runs that this process may drive at a time.", pool.slots if pool else 0),
        ("metier_pool_busy", "Runs that this process drives.", pool.busy if pool else 0),
        ("metier_watchers", "Event streams that are open.", state.feed.watchers),
        ("metier_watched_runs", "Runs that are watched.", state.feed.watched),
    ):
        lines += [f"# HELP {name} {text}", f"# TYPE {name} gauge", f"{name} {value}"]
    return [*lines, *state.metrics.render(), *_render_usage(await store.usage.sum_by("model"))]


def _render_usage(totals: Sequence[UsageTotal]) -> Iterator[str]:
    """Render the totals of all processes. They never shrink, because the store keeps them when runs are deleted."""
    yield "# HELP metier_model_calls_total Model calls of runs that ended or wait."
    yield "# TYPE metier_model_calls_total counter"
    for model, amounts in totals:
        yield f'metier_model_calls_total{{model="{_quote(model)}"}} {amounts.calls}'
    yield "# HELP metier_model_tokens_total Tokens of these calls; cached ones are also input."
    yield "# TYPE metier_model_tokens_total counter"
    for model, amounts in totals:
        kinds = {"input": amounts.input_tokens, "cached": amounts.cached_tokens, "output": amounts.output_tokens}
        for kind, count in kinds.items():
            yield f'metier_model_tokens_total{{model="{_quote(model)}",kind="{kind}"}} {count}'
    yield "# HELP metier_model_cost_usd_total Cost of these calls, where a price is known."
    yield "# TYPE metier_model_cost_usd_total counter"
    for model, amounts in totals:
        yield f'metier_model_cost_usd_total{{model="{_quote(model)}"}} {amounts.cost_usd:.6f}'


def _quote(label: str) -> str:
    return label.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


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
