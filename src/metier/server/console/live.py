"""Tell open pages that something changed, so that they fetch what they show anew. One stream per page.

A page shows a fold, not a list of messages: what it missed while it was not connected is in what it fetches next, and
nothing can be shown twice. The number of a message says which change it tells of.
"""

import hashlib
from collections.abc import AsyncGenerator
from dataclasses import dataclass, field

import anyio
from fastapi import APIRouter, Request
from starlette.responses import Response, StreamingResponse

from metier.errors import StoreError
from metier.runtime.runs import Runtime
from metier.server.console.rendering import Here, PageRoute
from metier.server.problems import HttpProblem

router = APIRouter(include_in_schema=False, route_class=PageRoute)

LOOK_SECONDS = 0.4
"""How often the index is looked at while a page is open; one look for all pages."""
BEAT_SECONDS = 15.0
"""How long a stream is silent at most, so that proxies and browsers know it is alive."""
_LOOKED_AT = 200
_RETRY_MILLISECONDS = 400


@dataclass(slots=True)
class Pulse:
    """Counts the changes of the index of runs and approvals."""

    version: int = 0
    watchers: int = 0
    _seen: str = ""
    _changed: anyio.Event = field(default_factory=anyio.Event)
    _watched: anyio.Event = field(default_factory=anyio.Event)

    async def beat(self, runtime: Runtime) -> None:
        """Look for changes for as long as the server serves, while there is a page that wants to know."""
        while True:
            if not self.watchers:
                self._watched = anyio.Event()
                await self._watched.wait()
            await self._look(runtime)
            await anyio.sleep(LOOK_SECONDS)

    async def wait(self, seen: int) -> int:
        """The number of the newest change, as soon as it is another one than `seen`."""
        self.watchers += 1
        self._watched.set()
        try:
            while self.version == seen:
                await self._changed.wait()
            return self.version
        finally:
            self.watchers -= 1

    async def _look(self, runtime: Runtime) -> None:
        try:
            rows = await runtime.store.list_runs(limit=_LOOKED_AT)
            approvals = await runtime.store.list_approvals(status="open", limit=_LOOKED_AT)
        except StoreError:  # the next look finds out whether it is there again
            return
        told = [f"{row.run_id} {row.status} {row.turns} {row.driver} {row.updated_at}" for row in rows]
        told += [row.approval_id for row in approvals]
        seen = hashlib.sha256("\n".join(told).encode()).hexdigest()
        if seen != self._seen:
            self._seen = seen
            self.version += 1
            changed, self._changed = self._changed, anyio.Event()
            changed.set()


@router.get("/live")
async def stream_changes(page: Here, request: Request, run: str = "") -> Response:
    """`changed` events: of one run, or of the lists."""
    pulse: Pulse = request.app.state.pulse
    if pulse.watchers >= page.state.options.max_watchers:
        raise HttpProblem(503, "too_many_watchers", "Too many pages are open on this server")
    told = _tell_run(page.state.runtime, run, request) if run else _tell_index(pulse)
    return StreamingResponse(told, media_type="text/event-stream", headers={"x-accel-buffering": "no"})


async def _tell_index(pulse: Pulse) -> AsyncGenerator[str]:
    seen = -1
    yield f"retry: {_RETRY_MILLISECONDS}\n\n"
    while True:
        newest = seen
        with anyio.move_on_after(BEAT_SECONDS):
            newest = await pulse.wait(seen)
        yield ": beat\n\n" if newest == seen else f"event: changed\nid: {newest}\ndata: {newest}\n\n"
        seen = newest


async def _tell_run(runtime: Runtime, run_id: str, request: Request) -> AsyncGenerator[str]:
    """By the number of journal entries; a page that comes back says which it has seen."""
    last = request.headers.get("last-event-id", "")
    seen = int(last) if last.isdecimal() and len(last) < 10 else -1
    yield f"retry: {_RETRY_MILLISECONDS}\n\n"
    state = ""
    while True:
        row = await runtime.store.find_run(run_id)
        if row is None:
            return
        entries = await runtime.store.read_journal(run_id, after=max(seen, 0))
        known = entries[-1].seq if entries else max(seen, 0)
        stands = f"{row.status} {row.driver}"
        if known != seen or stands != state:
            seen, state = known, stands
            yield f"event: changed\nid: {seen}\ndata: {seen}\n\n"
        elif not await runtime.store.wait_for_entries(run_id, after=seen, seconds=LOOK_SECONDS * 2):
            yield ": beat\n\n"
