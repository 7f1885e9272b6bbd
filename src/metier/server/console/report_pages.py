"""Reports over many runs: cost, latency, evals, and the audit of decisions."""

from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from itertools import groupby
from typing import Literal, cast, get_args
from urllib.parse import urlencode

from anyio.to_thread import run_sync
from fastapi import APIRouter
from msgspec import Struct
from pydantic import JsonValue
from starlette.responses import Response

from metier.errors import UsageError
from metier.evals.eval_results import build_page, load_results
from metier.runtime.approval_questions import parse_call
from metier.runtime.cleaning import build_host_redactor
from metier.runtime.history.spending import (
    MAX_GROUPS,
    build_usage,
    parse_since,
    read_call_times,
    read_days,
    read_spending,
)
from metier.server.console.charts import Bar, BarChart, build_ticks, round_up, stack
from metier.server.console.rendering import Here, PageRoute
from metier.store.base import RecordedDecision
from metier.store.usage import DayTotal, RunTime
from metier.telemetry.amounts import format_cost, format_count, format_seconds, format_tokens
from metier.telemetry.call_text import show_call
from metier.telemetry.excerpt import one_line
from metier.telemetry.redaction import Redactor
from metier.views.call_line import describe_call
from metier.views.run_view import Usage
from metier.views.spending import Grouping, Total

router = APIRouter(include_in_schema=False, route_class=PageRoute)

GROUPINGS: tuple[str, ...] = get_args(Grouping)
SPANS = (("24h", "Last day"), ("7d", "Last week"), ("4w", "Last four weeks"))
_MAX_DAYS = 31
_MAX_COLORS = 8
_MIN_SHARE = 0.001

type TimeGrouping = Literal["model", "agent", "task_id"]
TIME_GROUPINGS: dict[str, TimeGrouping] = {"model": "model", "agent": "agent", "task": "task_id"}
PERCENTILES = (50, 90, 95, 99)
_MAX_SAMPLE = 5_000
_MAX_CALL_RUNS = 60
"""Runs whose journals are read for the latency of model calls. Each takes about a millisecond."""


class Percentiles(Struct, frozen=True, kw_only=True):
    """Durations of one group, in seconds."""

    name: str
    count: int
    values: tuple[float, ...]
    """In the order of `PERCENTILES`."""
    longest: float


@router.get("/cost")
async def show_cost(page: Here, by: str = "model", since: str = "7d") -> Response:
    if by not in GROUPINGS:
        raise UsageError(f"Costs cannot be grouped by {by[:40]!r}", hint=f"Use one of {', '.join(GROUPINGS)}")
    now = page.state.host.clock.now()
    started = parse_since(since, now=now)
    grouping = cast("Grouping", by)  # checked above
    found = await read_spending(page.state.runtime, grouping, since=started)
    colors = {total.name: number for number, total in enumerate(found.totals[:_MAX_COLORS], start=1)}
    if by == "day":
        colors = {}
    parts = await read_days(page.state.runtime, grouping, names=tuple(colors), since=started)
    first = f"{max(started, now - timedelta(days=_MAX_DAYS)):%Y-%m-%d}"
    return await page.render(
        "cost.html",
        "cost",
        by=by,
        since=since,
        spans=SPANS,
        groupings=GROUPINGS,
        found=found,
        whole=found.whole,
        totals=found.totals,
        has_more=len(found.totals) >= MAX_GROUPS,
        chart=build_cost_chart([day for day in found.days if day.name >= first], parts, colors),
        legend=list(colors.items()),
    )


def build_cost_chart(days: Sequence[Total], groups: Sequence[DayTotal], colors: Mapping[str, int]) -> BarChart:
    """Build a bar per day from its groups, the costliest at the bottom; groups without a color share the rest.

    Without any known price, bars show tokens.
    """
    by_cost = any(day.usage.cost_usd for day in days)

    def measure(usage: Usage) -> float:
        return usage.cost_usd if by_cost else float(usage.input_tokens + usage.output_tokens)

    top, step = round_up(max((measure(day.usage) for day in days), default=0.0))
    bars: list[Bar] = []
    for day in days:
        whole = measure(day.usage)
        amounts = {each.name: measure(build_usage(each.amounts)) for each in groups if each.day == day.name}
        named = sorted(amounts.items(), key=lambda group: -group[1])
        rest = max(0.0, whole - sum(amounts.values()))
        if rest > _MIN_SHARE * top:
            named.append(("others", rest))
        parts = stack([(str(colors.get(name, 0 if colors else 1)), name, amount) for name, amount in named], top=top)
        cost = format_cost(day.usage.known_cost_usd) if by_cost else f"{format_tokens(round(whole))} tokens"
        title = ", ".join((f"{day.name}: {cost}", *(one_line(part.name, 40) for part in parts[:_MAX_COLORS])))
        bars.append(Bar(label=_format_day(day.name), title=title, parts=parts))
    ticks = build_ticks(top, step, lambda value: _format_axis_cost(value) if by_cost else format_tokens(round(value)))
    return BarChart(bars=tuple(bars), ticks=ticks)


@router.get("/latency")
async def show_latency(page: Here, by: str = "model", since: str = "7d") -> Response:
    """Durations of ended runs and of the model calls of the latest ones."""
    if by not in TIME_GROUPINGS:
        raise UsageError(f"Latency cannot be grouped by {by[:40]!r}", hint=f"Use one of {', '.join(TIME_GROUPINGS)}")
    grouping = TIME_GROUPINGS[by]
    runtime, now = page.state.runtime, page.state.host.clock.now()
    started = parse_since(since, now=now)
    total, sample = await runtime.store.usage.sample_times(since=started, sample_size=_MAX_SAMPLE)
    groups = ((_name_group(time, grouping), time.seconds) for time in sample)
    return await page.render(
        "latency.html",
        "latency",
        by=by,
        since=since,
        spans=SPANS,
        groupings=tuple(TIME_GROUPINGS),
        percentiles=PERCENTILES,
        total=total,
        sampled=len(sample),
        whole=build_percentiles(("", time.seconds) for time in sample)[:1],
        groups=build_percentiles(groups)[:MAX_GROUPS],
        calls=build_percentiles(await read_call_times(runtime, sample[:_MAX_CALL_RUNS])),
        call_runs=min(len(sample), _MAX_CALL_RUNS),
        chart=build_latency_chart(sample, first=max(started, now - timedelta(days=_MAX_DAYS))),
    )


def build_percentiles(times: Iterable[tuple[str, float]]) -> list[Percentiles]:
    """Return the nearest-rank percentiles of each group, the largest group first."""
    groups: dict[str, list[float]] = {}
    for name, seconds in times:
        groups.setdefault(name, []).append(seconds)
    found: list[Percentiles] = []
    for name, values in groups.items():
        values.sort()
        # `-(-a // b)` rounds up.
        ranks = tuple(values[-(-len(values) * percent // 100) - 1] for percent in PERCENTILES)
        found.append(Percentiles(name=name, count=len(values), values=ranks, longest=values[-1]))
    return sorted(found, key=lambda group: (-group.count, group.name))


def build_latency_chart(sample: Sequence[RunTime], *, first: datetime) -> BarChart:
    """Build a bar per day: the median, and on top of it the difference to the 95th percentile."""
    inside = sorted((time for time in sample if time.created_at >= first), key=lambda time: time.created_at)
    days = [
        build_percentiles((day, time.seconds) for time in times)[0]
        for day, times in groupby(inside, key=lambda time: f"{time.created_at.astimezone(UTC):%Y-%m-%d}")
    ]
    middle, late = PERCENTILES.index(50), PERCENTILES.index(95)
    longest = max((day.values[late] for day in days), default=0.0)
    unit, name = (1, "s") if longest < 120 else (60, "min") if longest < 7200 else (3600, "h")
    top, step = (unit * value for value in round_up(longest / unit))
    bars: list[Bar] = []
    for day in days:
        amounts = [("1", "p50", day.values[middle]), ("7", "p95", day.values[late] - day.values[middle])]
        title = (
            f"{day.name}: p50 {format_seconds(day.values[middle])}, p95 {format_seconds(day.values[late])},"
            f" {format_count(day.count, 'run')}"
        )
        bars.append(Bar(label=_format_day(day.name), title=title, parts=stack(amounts, top=top)))
    return BarChart(bars=tuple(bars), ticks=build_ticks(top, step, lambda value: f"{value / unit:g} {name}"))


def _name_group(time: RunTime, grouping: TimeGrouping) -> str:
    name: str = getattr(time, grouping)
    return name or {"model": "none", "agent": "built in", "task_id": "no task"}[grouping]


def _format_day(day: str) -> str:
    return f"{datetime.fromisoformat(day):%b %d}"


def _format_axis_cost(cost_usd: float) -> str:
    """Without an exponent."""
    return f"${cost_usd:,.9f}".rstrip("0").rstrip(".")


@router.get("/evals")
async def show_evals(page: Here) -> Response:
    results = await run_sync(load_results, page.state.host.runs)
    targets = build_page(results)
    return await page.render("evals.html", "evals", targets=targets)


PAGE = 50
STATUSES = ("approved", "denied", "expired")


class ListedDecision(Struct, frozen=True, kw_only=True):
    approval_id: str
    run_id: str
    status: str
    decided_by: str
    reason: str
    at: datetime
    call: str
    is_edited: bool
    counted: bool
    """False if another decision was first."""


@router.get("/audit")
async def show_audit(page: Here, by: str = "", status: str = "", before: int = 0) -> Response:
    runtime = page.state.runtime
    wanted = status if status in STATUSES else ""
    # One more than is shown tells whether another page follows.
    rows = await runtime.store.list_decisions(decided_by=by[:200], status=wanted, before=before, limit=PAGE + 1)
    redactor = build_host_redactor(runtime.host)
    address = urlencode({name: value for name, value in (("by", by), ("status", wanted)) if value})
    return await page.render(
        "audit.html",
        "audit",
        decisions=[build_listed_decision(row, redactor) for row in rows[:PAGE]],
        by=by,
        wanted=wanted,
        statuses=STATUSES,
        address=address,
        before=before,
        next_cursor=rows[PAGE - 1].number if len(rows) > PAGE else 0,
    )


def build_listed_decision(row: RecordedDecision, redactor: Redactor) -> ListedDecision:
    tool, arguments = parse_call(row.payload)
    shown = cast("dict[str, JsonValue]", show_call({**arguments}, redactor))  # an object stays one
    return ListedDecision(
        approval_id=row.attempt.approval_id,
        run_id=row.run_id,
        status=row.attempt.status,
        decided_by=row.attempt.decided_by,
        reason=row.attempt.reason,
        at=row.attempt.at,
        call=describe_call(tool, shown),
        is_edited=row.attempt.counted and row.edited_payload is not None,
        counted=row.attempt.counted,
    )
