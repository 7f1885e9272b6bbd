"""Health of the workspace: what `agent doctor` finds, the queue, and runs that are active now."""

import os
from collections import Counter
from datetime import datetime, timedelta
from typing import cast

from anyio.to_thread import run_sync
from fastapi import APIRouter
from msgspec import Struct
from starlette.background import BackgroundTask
from starlette.responses import Response

from metier.runtime.diagnosis import Finding, examine, examine_mcp
from metier.runtime.host import Host
from metier.runtime.runs import Runtime
from metier.server.console.rendering import Here, PageRoute
from metier.server.queue_health import read_queue
from metier.store.base import RUNNABLE, RunRow, RunSearch

router = APIRouter(include_in_schema=False, route_class=PageRoute)

_MAX_AGE = timedelta(seconds=30)
_MAX_RUNS = 50
_MAX_ROWS = 2_000


class Checkup(Struct):
    """The latest findings of `agent doctor` for the server's workspace."""

    findings: tuple[Finding, ...] = ()
    checked_at: datetime | None = None

    async def run(self, host: Host) -> None:
        def check() -> tuple[Finding, ...]:
            return tuple(examine(host.settings, os.environ, cwd=host.workspace, home=host.home))

        self.findings = await run_sync(check)
        self.checked_at = host.clock.now()


@router.get("/health")
async def show_health(page: Here, check: str = "") -> Response:
    """Show the latest findings at once; old ones are refreshed after the response.

    The checks start programs, read the whole database and compare it with folders: at 100,000 runs they take a second.
    """
    host, runtime = page.state.host, page.state.runtime
    rows = await _list_under_way(runtime)
    driven = [row for row in rows if row.driver]
    waiting = [row for row in rows if not row.driver and row.status in RUNNABLE]
    queued = await read_queue(page.state)
    checkup = cast("Checkup", page.request.app.state.checkup)  # put there by `mount`
    if checkup.checked_at is None or check:
        await checkup.run(host)
    # Reading a file is cheap, and a user who just accepted a server comes back to see it.
    servers = await run_sync(lambda: list(examine_mcp(host.settings, host.workspace, home=host.home)))
    findings = [queued.finding, *(each for each in checkup.findings if each.area != "mcp"), *servers]
    areas: dict[str, list[Finding]] = {}
    for finding in findings:
        areas.setdefault(finding.area, []).append(finding)
    response = await page.render(
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
        checked_at=checkup.checked_at,
        problems=[finding for finding in findings if finding.state == "problem"],
    )
    if checkup.checked_at is not None and host.clock.now() - checkup.checked_at > _MAX_AGE:
        response.background = BackgroundTask(checkup.run, host)
    return response


async def _list_under_way(runtime: Runtime) -> list[RunRow]:
    """Return all runs that are driven or can be, page by page."""
    search = RunSearch(statuses=(*RUNNABLE, "delegating"))
    rows: list[RunRow] = []
    while page := await runtime.store.search_runs(search, before=rows[-1].number if rows else 0, limit=_MAX_ROWS):
        rows += page
    return rows
