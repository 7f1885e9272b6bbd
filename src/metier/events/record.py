"""The envelope of an event in the log, and the registry of all event types. Pure values."""

from typing import Any, Literal

from msgspec import DecodeError, Raw, json
from msgspec.structs import asdict

from metier.events import model, run, skill, step, task
from metier.events.payload import Payload
from metier.values import AwareDatetime, StoredValue

SCHEMA_VERSION = 1

type RedactionMode = Literal["redacted", "full"]
"""`full` is written only if `logging.redact_secrets` is off."""

SUBJECTS = (run, model, skill, step, task)
"""Modules that declare payloads. Classes of plugins and tests are not event types."""


def payload_types() -> dict[str, type[Payload]]:
    """Return every event type with its payload class, by subject and in the order of their definitions."""
    declared = Payload.__subclasses__()
    return {cls.event_type: cls for subject in SUBJECTS for cls in declared if cls.__module__ == subject.__name__}


_PAYLOADS = payload_types()


class EventRecord(StoredValue, frozen=True, kw_only=True):
    """One line of `events.jsonl`."""

    run_id: str
    trace_id: str
    span_id: str
    """Shared by the start and the end of one run, turn, model call, step, skill or question."""
    parent_span_id: str = ""
    """Span that this one is part of; empty for the run's own."""
    timestamp: AwareDatetime
    seq: int
    event_type: str
    payload: Payload
    redaction_mode: RedactionMode = "redacted"
    schema_version: int = SCHEMA_VERSION
    entry: int = 0
    """Number of its journal entry; 0 for informational events."""
    turn: int = 0
    """Turn of the run; 0 before the first, and in logs of versions that did not record it."""
    skill: str = ""
    """Skill in charge at that time; empty if there was none."""

    def __post_init__(self) -> None:
        # The record has the type too, for readers that decode only the payloads they know.
        if self.payload.event_type != self.event_type:
            raise ValueError(f"a {self.payload.event_type!r} payload in a {self.event_type!r} record")


class _Line(EventRecord, frozen=True, kw_only=True):
    """A record whose event type is read before its payload."""

    payload: Raw  # pyright: ignore[reportIncompatibleVariableOverride]

    def __post_init__(self) -> None:
        """Nothing to compare yet."""


# In two steps, because the type that decides how a payload is decoded is outside of it.
_LINES = json.Decoder(_Line)


def parse_record(line: bytes | str) -> EventRecord:
    """Raises `ValueError` for text that is no record, or one of a newer version."""
    try:
        found = _LINES.decode(line)
        payload_type = _PAYLOADS.get(found.event_type)
        if payload_type is None:
            raise ValueError(f"event type {found.event_type!r} is not known")
        payload = json.decode(found.payload, type=payload_type)
        fields: dict[str, Any] = {**asdict(found), "payload": payload}
        return EventRecord(**fields)
    except (DecodeError, RecursionError) as error:
        raise ValueError(str(error)) from error


def render_record(record: EventRecord) -> bytes:
    return json.encode(record)
