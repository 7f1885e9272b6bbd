"""Tell open pages that something changed, so that they fetch what they show again. One stream per page.

A page shows a fold, not a list of messages: what it missed while it was not connected is in what it fetches next, and
nothing can be shown twice. The number of a message says which change it tells of.
"""

import hashlib
import json
from collections.abc import AsyncGenerator, Generator, Sequence
from contextlib import closing, contextmanager
from typing import cast

import anyio
from fastapi import APIRouter
from msgspec import Struct, field
from sse_starlette import EventSourceResponse, ServerSentEvent
from starlette.responses import Response

from metier.errors import StoreError
from metier.events.model import LlmRequestFailed, LlmRequestSent, LlmResponseReceived
from metier.events.partial import Partial
from metier.events.record import EventRecord
from metier.events.step import SkillStepExecuted
from metier.runtime.history.follower import Follower
from metier.runtime.runs import Runtime
from metier.server.console.rendering import Here, PageRoute
from metier.server.problems import HttpProblem

router = APIRouter(include_in_schema=False, route_class=PageRoute)

MAX_DRAFT = 8_000
"""Characters of the end of a reply or output that are sent."""
DRAFT_SECONDS = 0.2
"""Interval of looking for text that is arriving."""
LOOK_SECONDS = 0.4
"""Interval of checking the index while a page is open; one check serves all pages."""
PING_SECONDS = 15
"""Maximum silence of a stream, so that proxies and browsers know that it is alive."""
SEND_SECONDS = 20
"""Time that a browser may take for one message; a slower one is disconnected and may reconnect."""
_LOOKED_AT = 200
_RETRY_MILLISECONDS = 400


class Pulse(Struct):
    """Counts the changes of the index of runs and approvals: one look at the store for all open pages."""

    version: int = 0
    watchers: int = 0
    has_failed: bool = False
    """The store did not answer the last look."""
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

    @contextmanager
    def watching(self) -> Generator[None]:
        """For as long as a page is open."""
        self.watchers += 1
        self._watched.set()
        try:
            yield
        finally:
            self.watchers -= 1

    async def wait(self, seen: int) -> None:
        """Until there is another change than `seen`."""
        while self.version == seen:
            await self._changed.wait()

    async def _look(self, runtime: Runtime) -> None:
        try:
            rows = await runtime.store.list_runs(limit=_LOOKED_AT)
            approvals = await runtime.store.list_approvals(status="open", limit=_LOOKED_AT)
        except StoreError:
            # Streams end, so that open pages show that they are out of date. They reconnect when the store answers.
            self.has_failed = True
            self._notify()
            return
        self.has_failed = False
        told = [f"{row.run_id} {row.status} {row.turns} {row.driver} {row.updated_at}" for row in rows]
        told += [row.approval_id for row in approvals]
        seen = hashlib.sha256("\n".join(told).encode()).hexdigest()
        if seen != self._seen:
            self._seen = seen
            self._notify()

    def _notify(self) -> None:
        self.version += 1
        changed, self._changed = self._changed, anyio.Event()
        changed.set()


@router.get("/live")
async def stream_changes(page: Here, run: str = "") -> Response:
    """`changed` events: of one run with those it handed work to, or of the lists."""
    pulse = cast("Pulse", page.request.app.state.pulse)  # put there by `mount`
    if pulse.watchers >= page.state.options.max_watchers:
        raise HttpProblem(503, "too_many_watchers", "Too many pages are open on this server", hint="Close some")
    await page.state.runtime.store.list_runs(limit=1)  # raises before the stream starts, if the store is unavailable
    told = _tell_run(pulse, page.state.runtime, run) if run else _tell_index(pulse)
    return EventSourceResponse(told, ping=PING_SECONDS, send_timeout=SEND_SECONDS, headers={"x-accel-buffering": "no"})


async def _tell_index(pulse: Pulse) -> AsyncGenerator[ServerSentEvent]:
    with pulse.watching():
        seen = -1
        while True:
            await pulse.wait(seen)
            if pulse.has_failed:
                return
            seen = pulse.version
            yield _build(seen)


async def _tell_run(pulse: Pulse, runtime: Runtime, run_id: str) -> AsyncGenerator[ServerSentEvent]:
    """Named by the number of its journal entries. Other changes of the index may be those of its child runs."""
    with pulse.watching(), closing(Follower(runtime, run_id)) as follower:
        entries, seen, draft = 0, "", Draft()
        while (row := await runtime.store.find_run(run_id)) is not None:
            new = await runtime.store.read_journal(run_id, after=entries)
            entries = new[-1].seq if new else entries
            now = f"{entries} {row.status} {row.driver} {pulse.version}"
            if now != seen:
                seen = now
                yield _build(entries)
                # Changes within this time are sent as one.
                await anyio.sleep(LOOK_SECONDS)
            if draft.add((await follower.look()).items):
                yield ServerSentEvent(data=draft.render(), event="partial")
            await runtime.store.wait_for_entries(run_id, after=entries, seconds=DRAFT_SECONDS)


class Draft(Struct):
    """The reply that is arriving and the output of running steps, for readers who watch now."""

    text: str = ""
    outputs: dict[str, str] = field(default_factory=dict[str, str])
    """By step."""

    def add(self, items: Sequence[EventRecord | Partial]) -> bool:
        """Return whether it changed."""
        before = self.render()
        for item in items:
            match item:
                case Partial(kind="output"):
                    self.outputs[item.step_id] = (self.outputs.get(item.step_id, "") + item.text)[-MAX_DRAFT:]
                case Partial():
                    self.text = "" if item.kind == "restart" else (self.text + item.text)[-MAX_DRAFT:]
                case EventRecord(payload=LlmRequestSent() | LlmResponseReceived() | LlmRequestFailed()):
                    self.text = ""  # the page has the whole reply
                case EventRecord(payload=SkillStepExecuted(step_id=step_id)):
                    self.outputs.pop(step_id, None)
                case _:
                    pass
        return self.render() != before

    def render(self) -> str:
        return json.dumps({"text": self.text, "outputs": self.outputs})


def _build(number: int) -> ServerSentEvent:
    return ServerSentEvent(data=str(number), event="changed", id=str(number), retry=_RETRY_MILLISECONDS)
