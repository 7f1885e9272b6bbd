"""The journal of one run while somebody drives it: what is recorded is written first and believed after."""

from collections.abc import Iterable

from pydantic import ValidationError

from metier.engine.entries import Entry, parse_entry, render_entry
from metier.engine.projection import project
from metier.engine.state import RunState, apply
from metier.events import Payload
from metier.store.base import Lease, Store, StoredEntry
from metier.store.failures import StoreDamaged, StoreFull
from metier.telemetry.sinks import EventWriter


class RunLog:
    """State, journal and event log of one run, moving together."""

    def __init__(self, state: RunState, *, store: Store, lease: Lease, writer: EventWriter) -> None:
        self.state = state
        self._store = store
        self._lease = lease
        self._writer = writer
        self.is_short_of_room = False
        """The disk was full; what is known is on record, and nothing new should be begun."""

    @property
    def lease(self) -> Lease:
        return self._lease

    async def record(self, *entries: Entry, durable: bool = False) -> None:
        """Write entries at the end of the journal, then take them into the state, then tell of them.

        Of two drivers of one run the second fails here, before it has any effect. Raises `SeqTaken`, `LeaseLost`.
        """
        stored = [
            StoredEntry(self.state.seq + offset, entry.kind, render_entry(entry))
            for offset, entry in enumerate(entries, start=1)
        ]
        try:
            await self._store.append(self._lease, self.state.seq + 1, stored, durable=durable)
        except StoreFull:
            # The store gave up its reserve. A result that is known must not be lost for want of room.
            await self._store.append(self._lease, self.state.seq + 1, stored, durable=durable)
            self.is_short_of_room = True
        for entry in entries:
            apply(self.state, entry)
            self._tell(project(entry, self.state))

    def emit(self, payload: Payload) -> None:
        """Tell of something that only watches; it changes nothing and is not in the journal."""
        self._writer.emit(payload)

    async def update_index(self) -> None:
        """Keep the row of the run index true."""
        state = self.state
        reason = state.failure.reason if state.failure else state.pause.reason if state.pause else ""
        changes = {"status": state.status, "turns": state.turn, "cost_usd": state.cost_usd, "reason": reason}
        await self._store.update_run(self._lease, changes)

    def close(self) -> None:
        """Let go of the event log."""
        self._writer.close()

    def _tell(self, payloads: Iterable[Payload]) -> None:
        for payload in payloads:
            self._writer.emit(payload, entry=self.state.seq)


async def read_entries(store: Store, run_id: str) -> list[Entry]:
    """The journal of a run. Raises `StoreDamaged` when an entry is not one that Metier wrote, or one is missing."""
    entries: list[Entry] = []
    for expected, stored in enumerate(await store.read_journal(run_id), start=1):
        if stored.seq != expected:
            raise StoreDamaged(f"The journal of run {run_id!r} has no entry {expected}", hint="Restore a back-up")
        try:
            entries.append(parse_entry(stored.data))
        except ValidationError as error:
            raise StoreDamaged(
                f"Entry {expected} of run {run_id!r} cannot be read",
                hint="It was changed, or written by a newer version of Metier",
            ) from error
    return entries
