"""Events on their way to watchers: one follower for each run that is watched, however many watch it.

A watcher has a short queue of texts that all watchers share. One that does not keep up is told to come again: it names
the last event it got, and everything behind that is read from the log. So nothing is kept for the slow.

An event is named by its place: the journal entry it tells of, which of that entry's events it is, and how many events
of no entry came since. Log and journal give the same names, on every machine.
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
"""Interval of checking a run that no process drives."""


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
        """The place of the record that comes next."""
        if not record.entry:
            return Place(self.entry, self.nth, self.after + 1)
        return Place(record.entry, self.nth + 1 if record.entry == self.entry else 1)


def parse_place(text: str) -> Place | None:
    """None for what `render` did not write."""
    numbers = text.strip().split(".")
    if len(numbers) != 3 or not all(number.isascii() and number.isdigit() and len(number) < 16 for number in numbers):
        return None
    return Place(*map(int, numbers))


class Told(NamedTuple):
    """One event as watchers get it."""

    place: Place
    record: EventRecord
    text: str
    """The record as JSON, rendered once for all watchers."""
    message: bytes
    """The same as a message of an event stream."""


class Watcher(Struct, eq=False):
    """The queue of one watcher. `next` gives events in order, each once."""

    after: Place
    """The last event that was given."""
    is_slow: bool = False
    """It was more than `QUEUE` events behind, and gets no more."""
    _past: list[Told] = field(default_factory=list[Told])
    _queue: list[Told] = field(default_factory=list[Told])
    _news: anyio.Event = field(default_factory=anyio.Event)
    _is_closed: bool = False

    async def next(self, *, seconds: float) -> list[Told] | None:
        """Return the next events, an empty list after the timeout, or None at the end."""
        if not (self._past or self._queue or self._is_closed):
            with anyio.move_on_after(seconds):
                await self._news.wait()
        self._news = anyio.Event()
        told: list[Told] = []
        for each in (*self._past, *self._queue):
            if each.place > self.after:
                told.append(each)
                self.after = each.place
        self._past, self._queue = [], []
        return None if self._is_closed and not told else told

    def begin(self, past: list[Told]) -> None:
        """Send the earlier events first."""
        self._past = past

    def put(self, told: list[Told]) -> None:
        if self._is_closed:
            return
        if len(self._queue) + len(told) > QUEUE:
            self.is_slow = True
            self.close()
            return
        self._queue += told
        self._news.set()

    def close(self) -> None:
        self._is_closed = True
        self._news.set()


class _Channel(Struct, eq=False):
    """One run that is watched."""

    run_id: str
    watchers: set[Watcher] = field(default_factory=set[Watcher])
    nudged: anyio.Event = field(default_factory=anyio.Event)
    scope: anyio.CancelScope = field(default_factory=anyio.CancelScope)


class Feed:
    """The watchers of one server process."""

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
        """As a sink of the host: a run that this process drives needs no polling."""
        if (channel := self._channels.get(record.run_id)) is not None:
            channel.nudged.set()

    def close(self) -> None:
        """The log of a run was closed; the feed continues."""

    def stop(self) -> None:
        """The server stops: watchers get what is queued, and then the end."""
        for channel in self._channels.values():
            for watcher in channel.watchers:
                watcher.close()

    @asynccontextmanager
    async def watch(self, run_id: str, *, after: Place | None = None) -> AsyncGenerator[Watcher]:
        """Events of a run behind `after`, those of the past first. Raises `HttpProblem` where too many watch."""
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
            # Subscribed before the past is read: what happens meanwhile is in the queue, and `next` drops repetitions.
            watcher.begin(await read_past(self._runtime, run_id, after=watcher.after))
            yield watcher
        finally:
            self._count -= 1
            channel.watchers.discard(watcher)
            if not channel.watchers and self._channels.get(run_id) is channel:
                del self._channels[run_id]
                channel.scope.cancel()

    async def _follow(self, channel: _Channel) -> None:
        place = Place()
        with channel.scope, closing(Follower(self._runtime, channel.run_id)) as follower:
            try:
                while True:
                    channel.nudged = anyio.Event()
                    news = await follower.look()
                    told, place = number(news.records, place)
                    if told:
                        for watcher in tuple(channel.watchers):
                            watcher.put(told)
                    if follower.is_elsewhere:  # driven or at rest: its next entry is told by the store
                        await follower.wait()
                        continue
                    with anyio.move_on_after(POLL_SECONDS if news.is_driven else REST_SECONDS):
                        await channel.nudged.wait()
            except MetierError:
                for watcher in channel.watchers:  # they come again, and find the store well or are told
                    watcher.close()


async def read_past(runtime: Runtime, run_id: str, *, after: Place | None = None) -> list[Told]:
    """Every event of a run until now, those behind a place."""
    news = await Follower(runtime, run_id).look(is_only_look=True)
    told = number(news.records, Place())[0]
    return [each for each in told if each.place > after] if after else told


def number(records: list[EventRecord], place: Place) -> tuple[list[Told], Place]:
    """The records with their places, the first behind `place`, and the place of the last."""
    told: list[Told] = []
    for record in records:
        place = place.step(record)
        text = _render(record)
        message = ServerSentEvent(data=text, event=record.event_type, id=place.render()).encode()
        told.append(Told(place, record, text, message))
    return told, place


def _render(record: EventRecord) -> str:
    return render_record(record).decode()
