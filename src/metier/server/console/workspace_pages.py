"""Cost, health and schedules of the workspace."""

import os
from collections.abc import Sequence
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
from metier.runtime.schedules.changes import pause_schedule
from metier.runtime.schedules.firing import start_now
from metier.runtime.schedules.known import get_schedule, list_schedule_problems, list_schedules, read_history
from metier.server.console.rendering import Here, Page, PageRoute
from metier.store.base import RUNNABLE
from metier.views.run_view import Usage
from metier.views.spending import Grouping, Spent, Total, sum_up

router = APIRouter(include_in_schema=False, route_class=PageRoute)

GROUPINGS: tuple[str, ...] = get_args(Grouping)
SPANS = (("24h", "Last day"), ("7d", "Last week"), ("4w", "Last four weeks"))
_MOST_DAYS = 31


@dataclass(frozen=True, slots=True, kw_only=True)
class DayBar:
    day: str
    total: Total
    share: float
    """Of the highest day, 0 to 1."""


@router.get("/cost")
async def show_cost(page: Here, by: str = "model", since: str = "7d") -> Response:
    if by not in GROUPINGS:
        raise UsageError(f"Costs are not added up by {by[:40]!r}", hint=f"Use one of {', '.join(GROUPINGS)}")
    now = page.state.host.clock.now()
    begun = parse_since(since, now=now)
    found = await read_spent(page.state.runtime, begun)
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
        totals=sum_up(found.spent, cast("Grouping", by)),  # checked above
        days=build_days(found.spent, first=f"{max(begun, now - timedelta(days=_MOST_DAYS)):%Y-%m-%d}"),
    )


def build_days(spent: Sequence[Spent], *, first: str) -> tuple[DayBar, ...]:
    """The days since `first` on which a model was asked, in order."""
    totals = {total.name: total for total in sum_up(spent, "day") if total.name >= first}
    by_cost = any(total.usage.cost_usd for total in totals.values())

    def measure(total: Total) -> float:
        return total.usage.cost_usd if by_cost else float(total.usage.input_tokens + total.usage.output_tokens)

    most = max((measure(total) for total in totals.values()), default=0.0) or 1.0
    return tuple(DayBar(day=day, total=total, share=measure(total) / most) for day, total in totals.items())


@router.get("/health")
async def show_health(page: Here) -> Response:
    """What `agent doctor` finds on this machine, and what is going on in this server."""
    host, runtime = page.state.host, page.state.runtime
    findings = await run_sync(_examine, page)
    areas: dict[str, list[Finding]] = {}
    for finding in findings:
        areas.setdefault(finding.area, []).append(finding)
    rows = [row for status in RUNNABLE for row in await runtime.store.list_runs(status=status, limit=200)]
    return await page.render(
        "health.html",
        "health",
        areas=areas,
        driven=[row for row in rows if row.driver],
        waiting=[row for row in rows if not row.driver],
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
