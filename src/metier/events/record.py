"""The envelope of an event in the log, and the registry of all event types. Pure values."""

from typing import Literal, Self, cast

from pydantic import AwareDatetime, SerializeAsAny, model_validator

from metier.events import model, run, skill, step, task
from metier.events.payload import Payload
from metier.messages import Value

SCHEMA_VERSION = 1

type RedactionMode = Literal["redacted", "full"]
"""`full` is written only where `logging.redact_secrets` is off."""

SUBJECTS = (run, model, skill, step, task)
"""The modules that declare payloads. Classes of plugins and tests are no event types."""


def payload_types() -> dict[str, type[Payload]]:
    """Return every event type with its payload class, by subject and in the order of their definitions."""
    declared = Payload.__subclasses__()
    return {cls.event_type: cls for subject in SUBJECTS for cls in declared if cls.__module__ == subject.__name__}


_PAYLOADS = payload_types()


class EventRecord(Value):
    """One line of `events.jsonl`."""

    run_id: str
    trace_id: str
    span_id: str
    """Shared by the start and the end of one run, turn, model call, step, skill or question."""
    parent_span_id: str = ""
    """The span that this one is part of; empty for the run's own."""
    timestamp: AwareDatetime
    seq: int
    event_type: str
    payload: SerializeAsAny[Payload]
    redaction_mode: RedactionMode = "redacted"
    schema_version: int = SCHEMA_VERSION
    entry: int = 0
    """The journal entry it tells of; 0 for what only watches."""
    turn: int = 0
    """The turn of the run in which it happened; 0 before the first, and in logs of versions that did not record it."""
    skill: str = ""
    """The skill in charge at that moment; empty where none was."""

    @model_validator(mode="before")
    @classmethod
    def _choose_payload(cls, data: object) -> object:
        if not isinstance(data, dict):
            return data
        fields = cast("dict[str, object]", data)  # keys of a JSON object or of keyword arguments are strings
        if isinstance(fields.get("payload"), Payload):
            return fields
        payload_type = _PAYLOADS.get(str(fields.get("event_type")))
        if payload_type is None:
            raise ValueError(f"event type {fields.get('event_type')!r} is not known")
        return {**fields, "payload": payload_type.model_validate(fields.get("payload"))}

    @model_validator(mode="after")
    def _check_type(self) -> Self:
        if self.payload.event_type != self.event_type:
            raise ValueError(f"a {self.payload.event_type!r} payload in a {self.event_type!r} record")
        return self
