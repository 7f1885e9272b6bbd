"""Records for a view: payloads with numbers and times, like in a run."""

from collections.abc import Iterable
from datetime import UTC, datetime, timedelta

from metier.events.payload import Payload
from metier.events.record import EventRecord

START = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)


def record(payload: Payload, *, seq: int = 1, run_id: str = "r1", turn: int = 0, skill: str = "") -> EventRecord:
    return EventRecord(
        run_id=run_id,
        trace_id="t",
        span_id="s",
        timestamp=START + timedelta(seconds=seq),
        seq=seq,
        event_type=payload.event_type,
        payload=payload,
        turn=turn,
        skill=skill,
    )


def records(payloads: Iterable[Payload], *, run_id: str = "r1") -> list[EventRecord]:
    """Build one record per second."""
    return [record(payload, seq=number, run_id=run_id) for number, payload in enumerate(payloads, start=1)]
