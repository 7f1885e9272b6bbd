"""Event streams that tell open pages to refresh. Each page has one stream.

A message carries no content: the page fetches its parts again. So a page that was disconnected misses nothing and
shows nothing twice.
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
"""Characters at the end of a reply or an output that are sent."""
DRAFT_SECONDS = 0.2
"""Interval of checks for arriving text."""
POLL_SECONDS = 0.4
"""Interval of checks of the run index while a page is open. One check serves all pages."""
PING_SECONDS = 15
"""Maximum silence of a stream. Proxies close connections that look idle."""
SEND_SECONDS = 20
"""Time for a browser to read one message. A slower one is disconnected and can reconnect."""
_MAX_CHECKED = 200
_RETRY_MILLISECONDS = 400


class Pulse(Struct):
    """Counts changes of runs and approvals, with one query for all open pages."""

    version: int = 0
    watchers: int = 0
    has_failed: bool = False
    """True if the store failed to answer the last query."""
    _seen: str = ""
    _changed: anyio.Event = field(default_factory=anyio.Event)
    _watched: anyio.Event = field(default_factory=anyio.Event)

    async def beat(self, runtime: Runtime) -> None:
        """Check for changes until the server stops, while a page is open."""
        while True:
            if not self.watchers:
                self._watched = anyio.Event()
                await self._watched.wait()
            await self._look(runtime)
            await anyio.sleep(POLL_SECONDS)

    @contextmanager
    def watching(self) -> Generator[None]:
        """Count an open page."""
        self.watchers += 1
        self._watched.set()
        try:
            yield
        finally:
            self.watchers -= 1

    async def wait(self, seen: int) -> None:
        """Wait for a version other than `seen`."""
        while self.version == seen:
            await self._changed.wait()

    async def _look(self, runtime: Runtime) -> None:
        try:
            rows = await runtime.store.list_runs(limit=_MAX_CHECKED)
            approvals = await runtime.store.list_approvals(status="open", limit=_MAX_CHECKED)
        except StoreError:
            # End the streams, so that open pages show that they are stale. They reconnect when the store answers.
            self.has_failed = True
            self._notify()
            return
        self.has_failed = False
        parts = [f"{row.run_id} {row.status} {row.turns} {row.driver} {row.updated_at}" for row in rows]
        parts += [row.approval_id for row in approvals]
        seen = hashlib.sha256("\n".join(parts).encode()).hexdigest()
        if seen != self._seen:
            self._seen = seen
            self._notify()

    def _notify(self) -> None:
        self.version += 1
        changed, self._changed = self._changed, anyio.Event()
        changed.set()


@router.get("/live")
async def stream_changes(page: Here, run: str = "") -> Response:
    """Stream `changed` events of a run and its children, or of the lists."""
    pulse = cast("Pulse", page.request.app.state.pulse)  # put there by `mount`
    if pulse.watchers >= page.state.options.max_watchers:
        raise HttpProblem(503, "too_many_watchers", "Too many pages are open on this server", hint="Close some")
    await page.state.runtime.store.list_runs(limit=1)  # raises before the stream starts, if the store is unavailable
    changes = _watch_run(pulse, page.state.runtime, run) if run else _watch_index(pulse)
    # Without this header, nginx collects messages before it passes them on.
    return EventSourceResponse(
        changes, ping=PING_SECONDS, send_timeout=SEND_SECONDS, headers={"x-accel-buffering": "no"}
    )


async def _watch_index(pulse: Pulse) -> AsyncGenerator[ServerSentEvent]:
    with pulse.watching():
        seen = -1  # the first message comes at once: the page may have missed changes while it loaded
        while True:
            await pulse.wait(seen)
            if pulse.has_failed:
                return
            seen = pulse.version
            yield _build(seen)


async def _watch_run(pulse: Pulse, runtime: Runtime, run_id: str) -> AsyncGenerator[ServerSentEvent]:
    """Stream changes of a run. Any change of the index counts, because it may be one of its child runs."""
    with pulse.watching(), closing(Follower(runtime, run_id)) as follower:
        entries, seen, draft = 0, "", Draft()
        while (row := await runtime.store.find_run(run_id)) is not None:
            new = await runtime.store.read_journal(run_id, after=entries)
            entries = new[-1].seq if new else entries
            now = f"{entries} {row.status} {row.driver} {pulse.version}"
            if now != seen:
                seen = now
                yield _build(entries)
                # Debounce: further changes within this time are sent as one.
                await anyio.sleep(POLL_SECONDS)
            if draft.add((await follower.look()).items):
                yield ServerSentEvent(data=draft.render(), event="partial")
            await runtime.store.wait_for_entries(run_id, after=entries, seconds=DRAFT_SECONDS)


class Draft(Struct):
    """The arriving reply and the output of running steps."""

    text: str = ""
    outputs: dict[str, str] = field(default_factory=dict[str, str])
    """By step."""

    def add(self, items: Sequence[EventRecord | Partial]) -> bool:
        """Add events. Returns whether the draft changed."""
        before = self.render()
        for item in items:
            match item:
                case Partial(kind="output"):
                    self.outputs[item.step_id] = (self.outputs.get(item.step_id, "") + item.text)[-MAX_DRAFT:]
                case Partial():
                    self.text = "" if item.kind == "restart" else (self.text + item.text)[-MAX_DRAFT:]
                case EventRecord(payload=LlmRequestSent() | LlmResponseReceived() | LlmRequestFailed()):
                    self.text = ""  # the refreshed page has the whole reply
                case EventRecord(payload=SkillStepExecuted(step_id=step_id)):
                    self.outputs.pop(step_id, None)
                case _:
                    pass
        return self.render() != before

    def render(self) -> str:
        return json.dumps({"text": self.text, "outputs": self.outputs})


def _build(number: int) -> ServerSentEvent:
    return ServerSentEvent(data=str(number), event="changed", id=str(number), retry=_RETRY_MILLISECONDS)
