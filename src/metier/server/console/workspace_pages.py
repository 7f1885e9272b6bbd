"""Cost, health and schedules of the workspace."""

import os
from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import cast, get_args

from anyio.to_thread import run_sync
from fastapi import APIRouter
from msgspec import Struct
from starlette.responses import Response

from metier.errors import UsageError
from metier.runtime.diagnosis import Finding, examine
from metier.runtime.history.spending import MAX_GROUPS, build_usage, parse_since, read_days, read_spending
from metier.runtime.queue.schedules import (
    get_schedule,
    list_schedule_problems,
    list_schedules,
    pause_schedule,
    read_history,
    start_now,
)
from metier.runtime.runs import Runtime
from metier.server.console.rendering import Here, Page, PageRoute
from metier.server.queue_health import read_queue
from metier.store.base import RUNNABLE, RunRow, RunSearch
from metier.store.usage import DayTotal
from metier.views.run_view import Usage
from metier.views.spending import Grouping, Total

router = APIRouter(include_in_schema=False, route_class=PageRoute)

GROUPINGS: tuple[str, ...] = get_args(Grouping)
SPANS = (("24h", "Last day"), ("7d", "Last week"), ("4w", "Last four weeks"))
_MAX_DAYS = 31
_MAX_COLOURS = 8
_LEAST_SHARE = 0.001
_MAX_RUNS = 50
_MAX_ROWS = 2_000


class DayPart(Struct, frozen=True, kw_only=True):
    """One group's share of one day."""

    name: str
    colour: int
    """0 for all groups that have no colour of their own."""
    below: float
    share: float
    """Start and height of the bar, as fractions of the highest day."""


class DayBar(Struct, frozen=True, kw_only=True):
    day: str
    total: Total
    share: float
    """Of the highest day, 0 to 1."""
    parts: tuple[DayPart, ...] = ()


@router.get("/cost")
async def show_cost(page: Here, by: str = "model", since: str = "7d") -> Response:
    if by not in GROUPINGS:
        raise UsageError(f"Costs are not added up by {by[:40]!r}", hint=f"Use one of {', '.join(GROUPINGS)}")
    now = page.state.host.clock.now()
    begun = parse_since(since, now=now)
    grouping = cast("Grouping", by)  # checked above
    found = await read_spending(page.state.runtime, grouping, since=begun)
    colours = _choose_colours(found.totals) if by != "day" else {}
    parts = await read_days(page.state.runtime, grouping, names=tuple(colours), since=begun)
    first = f"{max(begun, now - timedelta(days=_MAX_DAYS)):%Y-%m-%d}"
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
        days=build_days([day for day in found.days if day.name >= first], parts, colours),
        legend=list(colours.items()),
    )


def build_days(days: Sequence[Total], groups: Sequence[DayTotal], colours: Mapping[str, int]) -> tuple[DayBar, ...]:
    """Build a bar per day from its groups, the costliest at the bottom; groups without a color share the rest."""
    by_cost = any(day.usage.cost_usd for day in days)

    def measure(usage: Usage) -> float:
        return usage.cost_usd if by_cost else float(usage.input_tokens + usage.output_tokens)

    most = max((measure(day.usage) for day in days), default=0.0) or 1.0
    bars: list[DayBar] = []
    for day in days:
        share = measure(day.usage) / most
        shares = {each.name: measure(build_usage(each.amounts)) / most for each in groups if each.day == day.name}
        named = sorted(shares.items(), key=lambda group: -group[1])
        rest = max(0.0, share - sum(shares.values()))
        parts = _stack([*named, ("others", rest)] if rest > _LEAST_SHARE else named, colours)
        bars.append(DayBar(day=day.name, total=day, share=share, parts=parts))
    return tuple(bars)


def _choose_colours(totals: Sequence[Total]) -> dict[str, int]:
    """For the costliest groups; the others share one."""
    return {total.name: number for number, total in enumerate(totals[:_MAX_COLOURS], start=1)}


def _stack(shares: Sequence[tuple[str, float]], colours: Mapping[str, int]) -> tuple[DayPart, ...]:
    parts: list[DayPart] = []
    below = 0.0
    for name, share in shares:
        parts.append(DayPart(name=name, colour=colours.get(name, 0), below=below, share=share))
        below += share
    return tuple(parts)


@router.get("/health")
async def show_health(page: Here) -> Response:
    """Show the findings of `agent doctor` on this machine, and the activity of this server."""
    host, runtime = page.state.host, page.state.runtime
    rows = await _list_under_way(runtime)
    driven = [row for row in rows if row.driver]
    waiting = [row for row in rows if not row.driver and row.status in RUNNABLE]
    queued = await read_queue(page.state)
    findings = [queued.finding, *await run_sync(_examine, page)]
    areas: dict[str, list[Finding]] = {}
    for finding in findings:
        areas.setdefault(finding.area, []).append(finding)
    return await page.render(
        "health.html",
        "health",
        areas=areas,
        driven=driven,
        waiting=waiting,
        shown=[*driven, *waiting][:_MAX_RUNS],
        workers=Counter(row.driver for row in driven).most_common(),
        queues=Counter(row.queue for row in waiting if row.queue).most_common(),
        pool=page.state.pool,
        queue=page.state.queue,
        oldest_seconds=queued.oldest_seconds,
        backend=host.settings.store.backend,
        problems=[finding for finding in findings if finding.state == "problem"],
    )


async def _list_under_way(runtime: Runtime) -> list[RunRow]:
    """Return all runs that are driven or can be, page by page."""
    search = RunSearch(statuses=(*RUNNABLE, "delegating"))
    rows: list[RunRow] = []
    while page := await runtime.store.search_runs(search, before=rows[-1].number if rows else 0, limit=_MAX_ROWS):
        rows += page
    return rows


def _examine(page: Page) -> list[Finding]:
    host = page.state.host
    return list(examine(host.settings, os.environ, cwd=host.workspace, home=host.home))


@router.get("/schedules")
async def show_schedules(page: Here) -> Response:
    runtime = page.state.runtime
    histories = [await read_history(runtime, known, times=2, firings=5) for known in await list_schedules(runtime)]
    problems = [problem.render() for problem in list_schedule_problems(page.state.host)]
    return await page.render("schedules.html", "schedules", histories=histories, problems=problems)


@router.post("/schedules/{name}")
async def change_schedule(page: Here, name: str) -> Response:
    form = await page.read_form()
    match form.get("do", ""):
        case "pause" | "resume" as word:
            await pause_schedule(page.state.runtime, name, is_paused=word == "pause")
        case "run":
            started = await start_now(page.state.runtime, await get_schedule(page.state.runtime, name))
            page.state.nudge()
            return page.go(f"/runs/{started.run_id}")
        case word:
            raise UsageError(f"A schedule cannot be told to {word[:40]!r}", hint="Use one of the buttons")
    return page.go("/schedules")
