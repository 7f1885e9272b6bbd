"""Writing the event log of a run anew from its journal."""

import shutil
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from metier.dataclass import dataclass
from metier.engine.journal import read_entries
from metier.errors import LogError
from metier.event_record import EventRecord
from metier.ids import SystemClock
from metier.runtime.history.replays import get_start
from metier.runtime.records.journal_events import Teller
from metier.runtime.records.losses import check_journal
from metier.runtime.runs import Runtime
from metier.telemetry.jsonl import FILE_NAME, JsonlSink, read_events
from metier.telemetry.sinks import Sink


@dataclass(frozen=True, slots=True, kw_only=True)
class Rebuilt:
    events: int
    lost: int
    """Events of the old log that only watched: a journal does not hold them."""


async def rebuild_events(runtime: Runtime, run_id: str) -> Rebuilt:
    """Write `events.jsonl` anew. Events keep their times where the old log still has them.

    Raises `LeaseHeld` while a process drives the run.
    """
    lease = await runtime.store.take_lease(run_id, owner=runtime.place.owner, seconds=60)
    try:
        entries = await read_entries(runtime.store, run_id)
        get_start(run_id, entries)
        path = runtime.folder(run_id) / FILE_NAME
        with suppress(LogError):  # a damaged log is what this is for; one that is ahead is the only witness of a loss
            check_journal(path.parent, run_id, entries)
        old = _read_old(path)
        draft = path.parent / "rebuilt" / FILE_NAME
        shutil.rmtree(draft.parent, ignore_errors=True)
        teller = Teller(runtime.place, run_id, _Restamping(JsonlSink.open(draft, clock=SystemClock()), old))
        count = teller.tell(entries)
        teller.close()
        draft.replace(path)
        shutil.rmtree(draft.parent, ignore_errors=True)
    finally:
        await runtime.store.release_lease(lease)
    return Rebuilt(events=count, lost=sum(1 for record in old if not record.entry))


class _Restamping:
    """Gives events the time and the span that they had."""

    def __init__(self, sink: Sink, old: Sequence[EventRecord]) -> None:
        self._sink = sink
        self._old: dict[tuple[int, str], list[EventRecord]] = {}
        for record in old:
            self._old.setdefault((record.entry, record.event_type), []).append(record)

    def write(self, record: EventRecord) -> None:
        known = self._old.get((record.entry, record.event_type))
        if known:
            before = known.pop(0)
            record = record.model_copy(update={"timestamp": before.timestamp, "span_id": before.span_id})
        self._sink.write(record)

    def close(self) -> None:
        self._sink.close()


def _read_old(path: Path) -> list[EventRecord]:
    """What can still be read; a damaged log is a reason to rebuild it."""
    records: list[EventRecord] = []
    try:
        records.extend(read_events(path))
    except LogError:
        return records
    return records
