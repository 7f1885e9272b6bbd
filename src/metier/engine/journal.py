"""The journal of a run that this process drives. Entries are written first, then folded into the state.

An entry that only follows from earlier ones may be folded first (`infer`). It is written with the next recorded entry,
so always before an effect.
"""

from collections.abc import Awaitable, Callable, Iterable, Sequence
from datetime import datetime
from typing import NamedTuple, Protocol

from msgspec.structs import replace

from metier.engine.entries.base import TimedEntry
from metier.engine.entries.entry import Entry, needs_flush, parse_entry, render_entry
from metier.engine.entries.run import RunFailed, RunFinished
from metier.engine.projection import project
from metier.engine.state.fold import apply
from metier.engine.state.run_state import RunState
from metier.events.payload import Payload
from metier.store.base import Lease, Store, StoredEntry
from metier.store.failures import StoreDamaged, StoreFull
from metier.store.machine import read_uptime
from metier.telemetry.sinks import EventWriter

_HELD_SECONDS = 0.5
"""Time after a write during which the lease is not checked again; far below its duration of 15 s."""


class _PendingEvent(NamedTuple):
    """An event that is not emitted yet, with the run's position when it happened."""

    payload: Payload
    entry: int
    """Number of its entry; 0 for an informational event."""
    turn: int
    skill: str


class Tracer(Protocol):
    """Follows the entries of a run after they are written; see `engine.trace_spans`."""

    def take(self, entry: Entry) -> None: ...

    def get_context(self, key: str) -> str:
        """Return the W3C `traceparent` of the running step or model call; empty if there is none."""
        ...


class RunLog:
    """State, journal and event log of one run, updated together."""

    def __init__(self, state: RunState, *, store: Store, lease: Lease, writer: EventWriter) -> None:
        self.state = state
        self._store = store
        self._lease = lease
        self._writer = writer
        self.is_disk_full = False
        """True if the disk is full. Recorded entries are safe, but no new work may start."""
        self._inferred: list[StoredEntry] = []
        """Inferred entries: folded into the state, not yet in the journal."""
        self._pending: list[_PendingEvent] = []
        """Events that are emitted once the inferred entries are written."""
        self.announce: Callable[[RunLog, Sequence[Entry]], Awaitable[None]] | None = None
        """Called with entries before they are written."""
        self._untraced: list[Entry] = []
        """Inferred entries that the tracer has not received."""
        self.tracer: Tracer | None = None
        """Set if spans of the run are exported."""
        self._held_at = float("-inf")
        """Uptime of the last write, at which this process held the lease."""

    @property
    def lease(self) -> Lease:
        return self._lease

    async def record(self, *entries: Entry) -> None:
        """Append entries to the journal, fold them into the state, then emit their events.

        Inferred entries are written first, in the same transaction; without arguments, only those are written. If two
        processes drive the run, the second one fails here, before it has any effect. Raises `SeqTaken`, `LeaseLost`.
        """
        entries = tuple(self._set_time(entry) for entry in entries)
        # `state.seq` already counts the inferred entries, because they are folded.
        stored = [*self._inferred, *store_entries(entries, after=self.state.seq)]
        if not stored:
            return
        if self.announce is not None:
            await self.announce(self, entries)
        asked_at = read_uptime()
        durable = any(map(needs_flush, entries))
        try:
            await self._store.append(self._lease, stored[0].seq, stored, durable=durable)
        except StoreFull:
            # The store has freed its reserved space, so the second try succeeds: a known result must not be lost.
            await self._store.append(self._lease, stored[0].seq, stored, durable=durable)
            self.is_disk_full = True
        # The time before the append: the store checked the lease at some point after it.
        self._held_at = asked_at
        # Only now: if the append fails, the next one tries to write them again.
        self._inferred.clear()
        self._emit_pending()
        self._trace(*self._untraced, *entries)
        # After the append: if that fails, the state must not be ahead of the journal. Events come last, because
        # `open_log` emits the ones that are missing after a crash.
        for entry in entries:
            apply(self.state, entry)
            for payload in project(entry, self.state):
                self._emit_event(self._note(payload, entry=self.state.seq))

    async def check_lease(self) -> None:
        """Check before a non-repeatable effect that this process is still the driver. Raises `LeaseLost`.

        A process that was suspended after it wrote its intent may have been replaced by another driver. The store is
        asked only if the last write is older than `_HELD_SECONDS`.
        """
        if read_uptime() - self._held_at > _HELD_SECONDS:
            # An append without entries checks the lease and writes nothing.
            await self._store.append(self._lease, self.state.seq + 1, ())

    def _trace(self, *entries: Entry) -> None:
        self._untraced.clear()
        if self.tracer is not None:
            for entry in entries:
                self.tracer.take(entry)

    def get_context(self, key: str) -> str:
        """Return the `traceparent` for the effects of a step or model call; empty if traces are off."""
        return self.tracer.get_context(key) if self.tracer is not None else ""

    def _set_time(self, entry: Entry) -> Entry:
        """Set the entry's time. The end of a run records its total duration, including waits."""
        if not isinstance(entry, TimedEntry):
            return entry
        now = self._writer.now()
        noted: dict[str, str | float] = {"recorded_at": now.isoformat()}
        started_at = self.state.started.started_at if self.state.started else ""
        if started_at and isinstance(entry, RunFinished | RunFailed):
            noted["duration_ms"] = measure(started_at, now)
        return replace(entry, **noted)

    def infer(self, entry: Entry) -> None:
        """Fold an entry that follows from earlier ones and has no effect, without a write of its own.

        It is written with the next recorded entry, and its events are emitted then. If the process is killed before,
        nothing is lost: the next driver infers the entry again.
        """
        entry = self._set_time(entry)
        self._inferred += store_entries((entry,), after=self.state.seq)
        self._untraced.append(entry)
        apply(self.state, entry)
        self._pending += [self._note(payload, entry=self.state.seq) for payload in project(entry, self.state)]

    def emit(self, payload: Payload) -> None:
        """Emit an informational event, which changes nothing and is not in the journal."""
        # Queue behind the events of inferred entries, so that the log keeps the order.
        if self._pending:
            self._pending.append(self._note(payload))
        else:
            self._emit_event(self._note(payload))

    async def update_index(self) -> None:
        """Update the row of the run index."""
        state = self.state
        reason = state.failure.reason if state.failure else state.pause.reason if state.pause else ""
        changes = {"status": state.status, "turns": state.total_turns, "cost_usd": state.cost_usd, "reason": reason}
        changes["tokens"] = state.input_tokens + state.output_tokens
        if state.skill:
            changes["skill"] = state.skill
        if state.started is not None:  # the row was created before the model was chosen
            changes["model"] = state.started.model
        await self._store.update_run(self._lease, changes)

    def close(self) -> None:
        """Close the event log. Events of inferred entries that were never written are dropped."""
        # Their entries are not in the journal: the next driver infers them again and emits the events.
        self._pending = [event for event in self._pending if not event.entry]
        self._emit_pending()
        self._writer.close()

    def _emit_pending(self) -> None:
        for event in self._pending:
            self._emit_event(event)
        self._pending.clear()

    def _note(self, payload: Payload, *, entry: int = 0) -> _PendingEvent:
        return _PendingEvent(payload, entry, self.state.turn, self.state.skill)

    def _emit_event(self, event: _PendingEvent) -> None:
        self._writer.emit(event.payload, entry=event.entry, turn=event.turn, skill=event.skill)


def measure(started_at: str, now: datetime) -> float:
    """Return the elapsed milliseconds; 0 if the clock was set back."""
    return max(0.0, round((now - datetime.fromisoformat(started_at)).total_seconds() * 1000, 3))


def store_entries(entries: Iterable[Entry], *, after: int = 0) -> list[StoredEntry]:
    """Convert entries to stored ones, numbered after `after`."""
    return [
        StoredEntry(number, entry.kind, render_entry(entry)) for number, entry in enumerate(entries, start=after + 1)
    ]


async def read_entries(store: Store, run_id: str, *, after: int = 0) -> list[Entry]:
    """Read the journal of a run after the entry `after`.

    Raises `StoreDamaged` if an entry is missing or cannot be parsed.
    """
    entries: list[Entry] = []
    for expected, stored in enumerate(await store.read_journal(run_id, after=after), start=after + 1):
        # Numbers have no gaps, so a gap means that the store lost an entry.
        if stored.seq != expected:
            raise StoreDamaged(f"The journal of run {run_id!r} has no entry {expected}", hint="Restore a back-up")
        entries.append(_parse(run_id, stored))
    return entries


async def read_entries_of[E: Entry](store: Store, run_id: str, kind: type[E]) -> list[E]:
    """Read the entries of one kind, in order. Others are not parsed, because parsing is most of the cost."""
    name = kind.__struct_config__.tag
    found = [_parse(run_id, stored) for stored in await store.read_journal(run_id) if stored.kind == name]
    return [entry for entry in found if isinstance(entry, kind)]


def _parse(run_id: str, stored: StoredEntry) -> Entry:
    try:
        return parse_entry(stored.data)
    except ValueError as error:
        raise StoreDamaged(
            f"Entry {stored.seq} of run {run_id!r} cannot be read",
            hint="It was changed, or written by a newer version of Metier",
        ) from error
