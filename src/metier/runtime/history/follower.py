"""Follow a run that another process drives, possibly on another machine, without changing it.

`Follower.look()` returns new items in display order: events and, for a run that a worker on this machine drives,
partial updates (text of the current reply, output of running programs; see `runtime.partials`). Partial updates are for
immediate display only: the event of the reply or step replaces them. Close the follower at the end.

The event log has the most details, but it is on the machine that drives the run. If there is no log here, or the
journal in the store is ahead of it, the events are computed from the journal instead.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import anyio

from metier.events.model import LlmRequestFailed, LlmRequestSent, LlmResponseReceived
from metier.events.partial import Partial, PartialSink
from metier.events.record import EventRecord, parse_record
from metier.runtime.history.run_views import EventRecorder
from metier.runtime.partials import PartialReader
from metier.runtime.records.run_log import JournalReplayer
from metier.runtime.runs import Runtime
from metier.store.base import RUNNABLE
from metier.telemetry.jsonl import FILE_NAME
from metier.telemetry.sinks import Sink

POLL_SECONDS = 0.1
LOOK_SECONDS = 1.0
"""Interval between comparisons of journal and log. A driver has this time to log an entry that it recorded."""


class News(NamedTuple):
    """New events of a run since the last check."""

    items: Sequence[EventRecord | Partial]
    is_driven: bool
    """True if a process drives the run or a worker will, so that more events may come."""

    @property
    def records(self) -> list[EventRecord]:
        return [item for item in self.items if isinstance(item, EventRecord)]

    @property
    def partials(self) -> list[Partial]:
        return [item for item in self.items if isinstance(item, Partial)]


async def follow(follower: "Follower", sink: Sink) -> None:
    """Write every event to the sink until the run ends or waits, and partial updates if it shows them."""
    while True:
        news = await follower.look()
        for item in news.items:
            if isinstance(item, EventRecord):
                sink.write(item)
            elif isinstance(sink, PartialSink):
                sink.show_partial(item)
        if not news.is_driven:
            return
        await follower.wait()


class Follower:
    """Follows a run. Log and journal have the same events in the same order, so a count tells which were shown."""

    def __init__(self, runtime: Runtime, run_id: str) -> None:
        self._runtime, self._run_id = runtime, run_id
        self._path, self._position = runtime.folder(run_id) / FILE_NAME, 0
        self._logged = 0
        """Number of journal events that the log contains."""
        self._shown = 0
        """Number of events shown from either source."""
        self._computed = EventRecorder()
        """Events computed from the journal, until they are shown."""
        self._teller = JournalReplayer(runtime.host, run_id, self._computed)
        self._is_elsewhere = False
        """True if the driver's log is on another machine."""
        self._next_look = 0.0
        self._reader = PartialReader(self._path.parent)
        self._partials: list[Partial] = []
        """Updates that were read but not shown, because their request is not in the log yet."""
        self._request = 0
        """The `seq` of the last `llm_request_sent`."""
        self._is_replied = False

    @property
    def is_elsewhere(self) -> bool:
        """Return True if the run seems to be driven on another machine. Then `wait` waits for the store."""
        return self._is_elsewhere or not self._path.exists()

    async def look(self, *, is_only_look: bool = False) -> News:
        """Return the events since the last check, each once and in order.

        Entries that are in the journal but not in the log are shown at the second check; with `is_only_look`, at once.
        """
        # Ask for the driver before reading, so that everything it wrote before it released the run is read below.
        is_driven = await self._is_driven()
        is_elsewhere = self.is_elsewhere
        if is_driven and not is_elsewhere and anyio.current_time() < self._next_look:
            records = list(self._read_new_log())
        else:
            # Without a log on this machine there is nothing to wait for: show the journal's events at once.
            records = await self._compare(has_time=is_driven and not is_elsewhere and not is_only_look)
        # Read after the log, because the driver writes the end of a text before the event of its reply.
        self._partials += self._reader.read(is_driven=is_driven and not is_only_look)
        return News([*self._add_partials(records)], is_driven)

    def close(self) -> None:
        self._reader.close()

    def _add_partials(self, records: list[EventRecord]) -> Iterator[EventRecord | Partial]:
        """Yield the events, and the text of each reply between its request and its end."""
        for record in records:
            match record.payload:
                case LlmRequestSent():
                    self._request, self._is_replied = record.seq, False
                case LlmResponseReceived() | LlmRequestFailed():
                    yield from self._take_partials()
                    self._is_replied = True
                case _:
                    pass
            yield record
        yield from self._take_partials()

    def _take_partials(self) -> list[Partial]:
        """Return output, and text of the current request. Text of later ones is kept, text of earlier ones dropped."""
        found, self._partials = self._partials, [each for each in self._partials if each.after > self._request]
        shown = (0,) if self._is_replied else (0, self._request)
        return [each for each in found if each.after in shown]

    async def wait(self) -> None:
        """Wait until another check may find something."""
        if self.is_elsewhere:
            after = self._teller.state.seq
            await self._runtime.store.wait_for_entries(self._run_id, after=after, seconds=LOOK_SECONDS)
        else:
            await anyio.sleep(POLL_SECONDS)

    async def _is_driven(self) -> bool:
        row = await self._runtime.store.find_run(self._run_id)
        # A queued run counts as driven, because a worker will claim it.
        return row is not None and bool(row.driver or (row.queue and row.status in RUNNABLE))

    async def _compare(self, *, has_time: bool) -> list[EventRecord]:
        """Return new events of the log, and those of the journal that the driver had time to log but didn't."""
        overdue = len(self._computed.records)
        self._teller.tell(await self._runtime.read_entries(self._run_id, after=self._teller.state.seq))
        self._next_look = anyio.current_time() + LOOK_SECONDS
        records = list(self._read_new_log())
        if self._is_elsewhere or not has_time:
            overdue = len(self._computed.records)
        for record in self._computed.records[self._shown : overdue]:
            self._is_elsewhere = True
            self._shown += 1
            records.append(record)
        return records

    def _read_new_log(self) -> Iterator[EventRecord]:
        for record in self._read_log():
            if record.entry:
                self._logged += 1
                if self._logged <= self._shown:
                    continue
                self._shown, self._is_elsewhere = self._logged, False
            yield record

    def _read_log(self) -> Iterator[EventRecord]:
        lines, self._position = _read_on(self._path, self._position)
        for line in lines:
            try:
                yield parse_record(line)
            except ValueError:  # written by a newer version, or damaged; `agent replay` tells which
                continue


def _read_on(path: Path, position: int) -> tuple[list[bytes], int]:
    """Return the complete lines after a position, and their end. An incomplete line is left for the next check."""
    try:
        with path.open("rb") as file:
            file.seek(position)
            data = file.read()
    except FileNotFoundError:
        return [], position
    whole = data[: data.rfind(b"\n") + 1]
    return whole.splitlines(), position + len(whole)
