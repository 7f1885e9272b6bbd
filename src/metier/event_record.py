"""The record that carries one event, and every kind of event there is. Pure values; what they say is `events`'s."""

from typing import Literal, Self, cast

from pydantic import AwareDatetime, SerializeAsAny, model_validator

from metier import events, hook_events, project_events, routing_events, task_events, undo_events
from metier.events import Payload
from metier.messages import Value

SCHEMA_VERSION = 1

type RedactionMode = Literal["redacted", "full"]
"""`full` is written only where `logging.redact_secrets` is off."""

VOCABULARY = (
    events.__name__,
    task_events.__name__,
    project_events.__name__,
    undo_events.__name__,
    hook_events.__name__,
    routing_events.__name__,
)
"""The modules that declare payloads."""


def payload_types() -> dict[str, type[Payload]]:
    """Every event type with its payload class, in the order in which they are declared."""
    return {cls.event_type: cls for cls in Payload.__subclasses__() if cls.__module__ in VOCABULARY}


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
