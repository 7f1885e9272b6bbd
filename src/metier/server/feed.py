"""Event streams: one follower for each watched run, no matter how many clients watch it.

Each watcher has a short queue; the rendered events are shared. A watcher that falls behind is disconnected. When it
reconnects, it names its last event and gets the rest from the event log: slow clients cost the server no memory.

The ID of an event is its position: its journal entry, its index among the events of that entry, and the number of
events without an entry since then. Event log and journal yield the same IDs on every machine.
"""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, closing
from typing import NamedTuple

import anyio
from anyio.abc import TaskGroup
from msgspec import Struct, field
from sse_starlette import ServerSentEvent

from metier.errors import MetierError
from metier.events.record import EventRecord, render_record
from metier.runtime.history.follower import POLL_SECONDS, Follower
from metier.runtime.runs import Runtime
from metier.server.problems import HttpProblem

QUEUE = 512
"""Maximum number of events that a watcher may be behind."""
REST_SECONDS = 1.0
"""Interval of checks of a run that no process drives."""


class Place(NamedTuple):
    """Position of an event in its run; positions of one run are ordered."""

    entry: int = 0
    nth: int = 0
    """Index among the events of that entry."""
    after: int = 0
    """Number of events without an entry since then."""

    def render(self) -> str:
        return ".".join(map(str, self))

    def step(self, record: EventRecord) -> "Place":
        """Return the position of the next record."""
        if not record.entry:
            return Place(self.entry, self.nth, self.after + 1)
        return Place(record.entry, self.nth + 1 if record.entry == self.entry else 1)


def parse_place(text: str) -> Place | None:
    """Parse the result of `Place.render`. Returns None for other text."""
    numbers = text.strip().split(".")
    if len(numbers) != 3 or not all(number.isascii() and number.isdigit() and len(number) < 16 for number in numbers):
        return None
    return Place(*map(int, numbers))


class SentEvent(NamedTuple):
    """An event as watchers receive it."""

    place: Place
    record: EventRecord
    text: str
    """The record as JSON, rendered once for all watchers."""
    message: bytes
    """The encoded message of the event stream."""


class Watcher(Struct, eq=False):
    """The queue of one watcher. `next` returns each event once and in order."""

    after: Place
    """The last event that was returned."""
    is_slow: bool = False
    """True if it fell more than `QUEUE` events behind and was closed."""
    _past: list[SentEvent] = field(default_factory=list[SentEvent])
    _queue: list[SentEvent] = field(default_factory=list[SentEvent])
    _news: anyio.Event = field(default_factory=anyio.Event)
    _is_closed: bool = False

    async def next(self, *, seconds: float) -> list[SentEvent] | None:
        """Return the next events, an empty list after the timeout, or None at the end."""
        if not (self._past or self._queue or self._is_closed):
            with anyio.move_on_after(seconds):
                await self._news.wait()
        self._news = anyio.Event()
        events: list[SentEvent] = []
        # Both may have the same events: they were queued while the past was read.
        for each in (*self._past, *self._queue):
            if each.place > self.after:
                events.append(each)
                self.after = each.place
        self._past, self._queue = [], []
        return None if self._is_closed and not events else events

    def prepend(self, past: list[SentEvent]) -> None:
        """Put the earlier events before the queue."""
        self._past = past

    def put(self, events: list[SentEvent]) -> None:
        if self._is_closed:
            return
        # Dropping single events would leave a gap. A closed stream reconnects and reads the rest from the log.
        if len(self._queue) + len(events) > QUEUE:
            self.is_slow = True
            self.close()
            return
        self._queue += events
        self._news.set()

    def close(self) -> None:
        self._is_closed = True
        self._news.set()


class _Channel(Struct, eq=False):
    """A watched run."""

    run_id: str
    watchers: set[Watcher] = field(default_factory=set[Watcher])
    nudged: anyio.Event = field(default_factory=anyio.Event)
    scope: anyio.CancelScope = field(default_factory=anyio.CancelScope)


class Feed:
    """The watchers of a server process."""

    def __init__(self, runtime: Runtime, group: TaskGroup, *, most: int) -> None:
        self._runtime = runtime
        self._group = group
        self._most = most
        self._channels: dict[str, _Channel] = {}
        self._count = 0

    @property
    def watchers(self) -> int:
        return self._count

    @property
    def watched(self) -> int:
        """Return the number of watched runs."""
        return len(self._channels)

    def write(self, record: EventRecord) -> None:
        """Wake the follower: as a sink, the feed hears of events of this process at once, without polling."""
        if (channel := self._channels.get(record.run_id)) is not None:
            channel.nudged.set()

    def close(self) -> None:
        """Do nothing: a sink is closed with each run, and the feed continues."""

    def stop(self) -> None:
        """End all streams after their queued events, because the server stops."""
        for channel in self._channels.values():
            for watcher in channel.watchers:
                watcher.close()

    @asynccontextmanager
    async def watch(self, run_id: str, *, after: Place | None = None) -> AsyncGenerator[Watcher]:
        """Watch the events of a run after a position, earlier ones first. Raises `HttpProblem` at the limit."""
        if self._count >= self._most:
            raise HttpProblem(503, "too_many_watchers", "Too many event streams are open", hint="Try again later")
        watcher = Watcher(after or Place())
        channel = self._channels.get(run_id)
        if channel is None:
            channel = self._channels[run_id] = _Channel(run_id)
            channel.watchers.add(watcher)
            self._group.start_soon(self._follow, channel)
        else:
            channel.watchers.add(watcher)
        self._count += 1
        try:
            # Subscribe before reading the past: events in between are then in the queue, and `next` drops duplicates.
            watcher.prepend(await read_past(self._runtime, run_id, after=watcher.after))
            yield watcher
        finally:
            self._count -= 1
            channel.watchers.discard(watcher)
            # A later watcher may have opened another channel for this run.
            if not channel.watchers and self._channels.get(run_id) is channel:
                del self._channels[run_id]
                channel.scope.cancel()

    async def _follow(self, channel: _Channel) -> None:
        place = Place()
        with channel.scope, closing(Follower(self._runtime, channel.run_id)) as follower:
            try:
                while True:
                    # Before looking, so that an event during the look is not missed.
                    channel.nudged = anyio.Event()
                    news = await follower.look()
                    events, place = number(news.records, place)
                    if events:
                        for watcher in tuple(channel.watchers):
                            watcher.put(events)
                    if follower.is_elsewhere:  # on another machine: only the store reports its next entry
                        await follower.wait()
                        continue
                    with anyio.move_on_after(POLL_SECONDS if news.is_driven else REST_SECONDS):
                        await channel.nudged.wait()
            except MetierError:
                for watcher in channel.watchers:  # clients reconnect, and get an error if the store is still down
                    watcher.close()


async def read_past(runtime: Runtime, run_id: str, *, after: Place | None = None) -> list[SentEvent]:
    """Return the events of a run so far, after a position."""
    news = await Follower(runtime, run_id).look(is_only_look=True)
    events = number(news.records, Place())[0]
    return [each for each in events if each.place > after] if after else events


def number(records: list[EventRecord], place: Place) -> tuple[list[SentEvent], Place]:
    """Number the records from `place` on. Returns them with the position of the last one."""
    events: list[SentEvent] = []
    for record in records:
        place = place.step(record)
        text = render_record(record).decode()
        message = ServerSentEvent(data=text, event=record.event_type, id=place.render()).encode()
        events.append(SentEvent(place, record, text, message))
    return events, place
