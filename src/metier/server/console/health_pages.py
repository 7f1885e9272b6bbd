"""Health of the workspace: what `agent doctor` finds, the queue, and runs that are active now."""

import os
from collections import Counter

from anyio.to_thread import run_sync
from fastapi import APIRouter
from starlette.responses import Response

from metier.runtime.diagnosis import Finding, examine
from metier.runtime.runs import Runtime
from metier.server.console.rendering import Here, Page, PageRoute
from metier.server.queue_health import read_queue
from metier.store.base import RUNNABLE, RunRow, RunSearch

router = APIRouter(include_in_schema=False, route_class=PageRoute)

_MAX_RUNS = 50
_MAX_ROWS = 2_000


@router.get("/health")
async def show_health(page: Here) -> Response:
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
