"""The events of a running run, and the text of replies while they arrive."""

from collections import deque
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass
from types import TracebackType
from typing import Protocol, Self

import anyio

from metier.api.results import RunResult
from metier.engine.stopper import Stopper
from metier.errors import UsageError
from metier.events.record import EventRecord
from metier.providers.base import Delta
from metier.telemetry.redaction import Redactor

_END_OF_REPLY = ("llm_response_received", "llm_request_failed")


@dataclass(frozen=True, slots=True)
class TextDelta:
    """A piece of an incomplete reply, for display only."""

    text: str
    is_restart: bool = False
    """The attempt failed: discard the text of this reply so far."""


class Stoppable(Protocol):
    """A stream with any type of result."""

    async def stop(self) -> None: ...


type Start = Callable[[Callable[[], Coroutine[None, None, None]]], object]
"""Starts a task that lives as long as the agent."""


class EventFeed:
    """A buffer between a run, which writes events and text, and the program that reads them."""

    def __init__(self, redactor: Redactor) -> None:
        self._redactor = redactor
        self._text = redactor.stream()
        # Unbounded: a run must not wait for a slow reader, and dropped events would leave a gap.
        self._items: deque[EventRecord | TextDelta] = deque()
        self._changed = anyio.Event()
        self._is_ended = False

    def write(self, record: EventRecord) -> None:
        """Buffer an event, as a sink of the run."""
        if record.event_type in _END_OF_REPLY:
            # Shows text that was held back as the possible start of a secret.
            self._show(self._text.close())
            self._text = self._redactor.stream()
        self._put(record)

    def close(self) -> None:
        """Do nothing: child runs write into the feed too. `end` ends it."""

    def observe(self, delta: Delta) -> None:
        """Buffer a piece of a reply; thinking is skipped."""
        if delta.kind == "restart":
            self._text = self._redactor.stream()
            self._put(TextDelta("", is_restart=True))
        elif delta.kind == "text":
            self._show(self._text.feed(delta.text))

    def end(self) -> None:
        self._is_ended = True
        self._changed.set()

    async def take(self) -> EventRecord | TextDelta | None:
        """Return the oldest unread item; None after the end."""
        while not self._items:
            if self._is_ended:
                return None
            await self._changed.wait()
            # An event can't be cleared, so the next wait needs a new one.
            self._changed = anyio.Event()
        return self._items.popleft()

    def _show(self, text: str) -> None:
        if text:
            self._put(TextDelta(text))

    def _put(self, item: EventRecord | TextDelta) -> None:
        self._items.append(item)
        self._changed.set()


class RunStream[T]:
    """A running run: iterate over its events, then read `result`. Created by `Agent.stream`.

    In an `async with` block, leaving early pauses the run. Without one, the run continues until the agent is closed.
    An async generator can't guarantee the pause: its cleanup may wait for the garbage collector.
    """

    def __init__(
        self, drive: Callable[[], Awaitable[RunResult[T]]], start: Start, *, feed: EventFeed, stopper: Stopper
    ) -> None:
        self._drive = drive
        self._start = start
        self._feed = feed
        self._stopper = stopper
        self._is_started = False
        self._ended = anyio.Event()
        self._failure: BaseException | None = None
        self._result: RunResult[T] | None = None

    @property
    def result(self) -> RunResult[T]:
        """Return the result. Raises `UsageError` before the end, and the error that stopped the run, if any."""
        if self._failure is not None:
            raise self._failure
        if self._result is None:
            raise UsageError("The run has not ended", hint="Read the result after the last event")
        return self._result

    async def stop(self) -> None:
        """Pause the run if it hasn't ended. Continue it with `Agent.resume`."""
        if not self._is_started or self._ended.is_set():
            return
        self._stopper.request("the program that started it")
        # The pause must be recorded before the program continues, even if the program itself is canceled.
        with anyio.CancelScope(shield=True):
            await self._ended.wait()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> EventRecord | TextDelta:
        self._begin()
        item = await self._feed.take()
        if item is not None:
            return item
        if self._failure is not None:
            raise self._failure
        raise StopAsyncIteration

    async def __aenter__(self) -> Self:
        self._begin()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.stop()

    def _begin(self) -> None:
        if not self._is_started:
            self._is_started = True
            self._start(self._work)

    async def _work(self) -> None:
        try:
            self._result = await self._drive()
        # Stored for the reader: raised in the agent's task group, an error would cancel the other runs. Cancellation
        # itself has to reach the group.
        except BaseException as failure:
            self._failure = failure
            if not isinstance(failure, Exception):
                raise
        finally:
            self._ended.set()
            self._feed.end()
