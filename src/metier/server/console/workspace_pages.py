"""Cost, health and schedules of the workspace."""

import os
from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import cast, get_args

from anyio.to_thread import run_sync
from fastapi import APIRouter
from starlette.responses import Response

from metier.dataclass import dataclass
from metier.errors import UsageError
from metier.runtime.doctor.finding import Finding
from metier.runtime.doctor.health import examine
from metier.runtime.history.spending import parse_since, read_spent
from metier.runtime.queue.firing import start_now
from metier.runtime.schedules.changes import pause_schedule
from metier.runtime.schedules.known import get_schedule, list_schedule_problems, list_schedules, read_history
from metier.server.console.rendering import Here, Page, PageRoute
from metier.store.base import RUNNABLE
from metier.store.search import RunSearch
from metier.views.run_view import Usage
from metier.views.spending import Grouping, Spent, Total, sum_up

router = APIRouter(include_in_schema=False, route_class=PageRoute)

GROUPINGS: tuple[str, ...] = get_args(Grouping)
SPANS = (("24h", "Last day"), ("7d", "Last week"), ("4w", "Last four weeks"))
_MOST_DAYS = 31
_MOST_COLOURS = 8
_MOST_RUNS = 50
_MOST_ROWS = 2_000


@dataclass(frozen=True, slots=True, kw_only=True)
class DayPart:
    """What one group came to on one day."""

    name: str
    colour: int
    """0 for all groups that have no colour of their own."""
    below: float
    share: float
    """Where it begins and how high it is, both of the highest day, 0 to 1."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DayBar:
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
    found = await read_spent(page.state.runtime, begun)
    grouping = cast("Grouping", by)  # checked above
    totals = sum_up(found.spent, grouping)
    whole = Usage()
    for each in found.spent:
        whole = whole.plus(each.usage)
    return await page.render(
        "cost.html",
        "cost",
        by=by,
        since=since,
        spans=SPANS,
        groupings=GROUPINGS,
        found=found,
        whole=whole,
        totals=totals,
        days=build_days(found.spent, grouping, first=f"{max(begun, now - timedelta(days=_MOST_DAYS)):%Y-%m-%d}"),
        legend=list(_choose_colours(totals).items()) if by != "day" else [],
    )


def build_days(spent: Sequence[Spent], by: Grouping, *, first: str) -> tuple[DayBar, ...]:
    """The days since `first` on which a model was asked, in order; each made of its groups, the costliest below."""
    totals = {total.name: total for total in sum_up(spent, "day") if total.name >= first}
    by_cost = any(total.usage.cost_usd for total in totals.values())

    def measure(total: Total) -> float:
        return total.usage.cost_usd if by_cost else float(total.usage.input_tokens + total.usage.output_tokens)

    most = max((measure(total) for total in totals.values()), default=0.0) or 1.0
    colours = _choose_colours(sum_up(spent, by))
    bars: list[DayBar] = []
    for day, total in totals.items():
        groups = sum_up([each for each in spent if each.day == day], by)
        parts = _stack([(group.name, measure(group) / most) for group in groups], colours)
        bars.append(DayBar(day=day, total=total, share=measure(total) / most, parts=parts))
    return tuple(bars)


def _choose_colours(totals: Sequence[Total]) -> dict[str, int]:
    """For the costliest groups; the others share one."""
    return {total.name: number for number, total in enumerate(totals[:_MOST_COLOURS], start=1)}


def _stack(shares: Sequence[tuple[str, float]], colours: Mapping[str, int]) -> tuple[DayPart, ...]:
    parts: list[DayPart] = []
    below = 0.0
    for name, share in shares:
        parts.append(DayPart(name=name, colour=colours.get(name, 0), below=below, share=share))
        below += share
    return tuple(parts)


@router.get("/health")
async def show_health(page: Here) -> Response:
    """What `agent doctor` finds on this machine, and what is going on in this server."""
    host, runtime = page.state.host, page.state.runtime
    findings = await run_sync(_examine, page)
    areas: dict[str, list[Finding]] = {}
    for finding in findings:
        areas.setdefault(finding.area, []).append(finding)
    rows = await runtime.store.search_runs(RunSearch(statuses=(*RUNNABLE, "delegating")), limit=_MOST_ROWS)
    driven = [row for row in rows if row.driver]
    waiting = [row for row in rows if not row.driver and row.status in RUNNABLE]
    return await page.render(
        "health.html",
        "health",
        areas=areas,
        driven=driven,
        waiting=waiting,
        shown=[*driven, *waiting][:_MOST_RUNS],
        workers=Counter(row.driver for row in driven).most_common(),
        queues=Counter(row.queue for row in waiting if row.queue).most_common(),
        pool=page.state.pool,
        queue=page.state.queue,
        backend=host.settings.store.backend,
        problems=sum(finding.state == "problem" for finding in findings),
    )


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
