"""The event writer and its sinks: payloads are cleaned, shortened, numbered and written. A failed sink stops no run.

The journal has everything that a run needs to continue. The event log is for users and log collectors, so it doesn't
repeat written files or long replies.
"""

import hashlib
import json
from collections.abc import Callable, Iterable
from datetime import datetime
from functools import lru_cache
from typing import Annotated, Literal, NamedTuple, Protocol, TypeAliasType, cast, get_args, get_origin

from msgspec import Struct
from msgspec.structs import asdict, fields, replace
from pydantic import JsonValue

from metier.decisions import ActionStep
from metier.errors import LogError
from metier.events.model import LlmRequestMeta
from metier.events.payload import Payload
from metier.events.record import SCHEMA_VERSION, EventRecord, RedactionMode
from metier.ids import Clock, Ids
from metier.telemetry.options import LoggingOptions
from metier.telemetry.redaction import Redactor
from metier.telemetry.sanitize import sanitize
from metier.telemetry.tracing import build_span_id
from metier.values import MadeHere, has_mark

_MAX_CACHED_LENGTH = 512
_MAX_CACHED = 2048
MAX_CLEANERS = 4
"""Maximum number of cached cleaners, each for one set of secrets."""
_TEXTLESS: tuple[object, ...] = (int, float, bool, int | None, float | None, bool | None, dict[str, int])


class Sink(Protocol):
    """A destination of events. It gets each record once, in order, and raises `LogError` or `OSError` if it fails."""

    def write(self, record: EventRecord) -> None: ...

    def close(self) -> None: ...


class BorrowedSink(Struct, frozen=True):
    """A sink that its owner closes, instead of the run that writes to it."""

    sink: Sink

    def write(self, record: EventRecord) -> None:
        self.sink.write(record)

    def close(self) -> None:
        return None


class FanOut:
    """Writes each record to every sink. A failing sink is disabled and reported once; the others continue."""

    def __init__(self, sinks: Iterable[Sink], *, report: Callable[[str], None]) -> None:
        self._sinks = list(sinks)
        self._report = report

    @property
    def active(self) -> tuple[Sink, ...]:
        """The sinks that have not failed."""
        return tuple(self._sinks)

    def write(self, record: EventRecord) -> None:
        failed: list[Sink] = []
        for sink in self._sinks:
            try:
                sink.write(record)
            except (LogError, OSError, ValueError) as error:  # `ValueError`: a stream that was closed
                failed.append(sink)
                self._report(f"{type(sink).__name__} is disabled: {error}")
        # After the loop, because removing an item while iterating would skip the next one.
        for sink in failed:
            self._sinks.remove(sink)

    def close(self) -> None:
        for sink in self._sinks:
            try:
                sink.close()
            except (LogError, OSError, ValueError) as error:
                self._report(f"{type(sink).__name__} could not be closed: {error}")
        self._sinks.clear()


class Cleaner:
    """Sanitizes and redacts the strings of a payload and summarizes long bodies, before any sink gets them."""

    def __init__(self, redactor: Redactor, *, sanitize_control_chars: bool = True, keeps_bodies: bool = False) -> None:
        self._redactor = redactor
        self._sanitize = sanitize_control_chars
        self._keeps_bodies = keeps_bodies
        self._harmless: set[str] = set()
        """Short strings known to be clean, such as tool names and statuses, which most events repeat."""
        self._ordinary: set[str] = set()
        """Clean strings that are not the name of a secret."""
        self._text_fields: dict[type[Struct], tuple[str, ...]] = {}
        """Fields that may hold outside text, by payload type."""

    def clean(self, payload: Payload) -> Payload:
        """Clean a payload. Return the same object if nothing changed."""
        cleaned = self._model(payload)
        # Truncate after redaction: a truncated secret would not be found, and its hash could be guessed.
        return cleaned if self._keeps_bodies else summarize_bodies(cleaned)

    def text(self, text: str) -> str:
        """Clean a text."""
        # Sanitize first, or color codes inside a secret would hide it from redaction.
        if text in self._harmless:
            return text
        cleaned = self._redactor.redact(self._safe(text))
        if cleaned is text and len(text) <= _MAX_CACHED_LENGTH:
            if len(self._harmless) >= _MAX_CACHED:
                # As a whole, because the strings that most events repeat are back at once.
                self._harmless.clear()
                self._ordinary.clear()
            self._harmless.add(text)
        return cleaned

    def value(self, value: JsonValue) -> JsonValue:
        """Clean a JSON value, including the values of secret names."""
        match value:
            case str():
                return self.text(value)
            case list():
                return [self.value(item) for item in value]
            case dict():
                return dict(self._item(key, item) for key, item in value.items())
            case _:
                return value

    def _item(self, key: str, value: JsonValue) -> tuple[str, JsonValue]:
        if key in self._ordinary:
            return key, self.value(value)
        cleaned = self.text(key)
        if self._redactor.covers(self._safe(key)):
            # Sanitized only, because `hide` needs whole values.
            return cleaned, self._redactor.hide(self._strings(value))
        if key in self._harmless:
            self._ordinary.add(key)
        return cleaned, self.value(value)

    def _safe(self, text: str) -> str:
        if self._sanitize:
            return sanitize(text)
        return text if text.isascii() else text.encode("utf-8", "replace").decode()

    def _model[V: Struct](self, value: V) -> V:
        kind = type(value)
        names = self._text_fields.get(kind)
        if names is None:
            names = self._text_fields[kind] = _list_text_fields(kind)
        changed: dict[str, object] = {}
        for name in names:
            old: object = getattr(value, name)
            if old is None:
                continue
            new = self.text(old) if isinstance(old, str) else self._value(old)
            if new is not old:
                changed[name] = new
        return replace(value, **changed) if changed else value

    def _value(self, value: object) -> object:
        match value:
            case str():
                return self.text(value)
            case Struct():
                return self._model(value)
            case tuple():
                items = cast("tuple[object, ...]", value)  # any items will do
                # Unchanged values stay the same objects: most payloads have nothing to clean and are not copied.
                cleaned = tuple(self._value(item) for item in items)
                return cleaned if any(new is not old for new, old in zip(cleaned, items, strict=True)) else items
            case list() | dict():
                old = cast("JsonValue", value)  # payloads hold JSON only
                new = self.value(old)
                return new if new != old else old
            case _:
                return value

    def _strings(self, value: JsonValue) -> JsonValue:
        match value:
            case str():
                return self._safe(value)
            case list():
                return [self._strings(item) for item in value]
            case dict():
                return {self._safe(key): self._strings(item) for key, item in value.items()}
            case _:
                return value


def _list_text_fields(kind: type[Struct]) -> tuple[str, ...]:
    """List the fields that may hold outside text. Maps of names to numbers are skipped: `token: 123456` is a count."""
    return tuple(each.name for each in fields(kind) if not _is_textless(each.type))


def _is_textless(kind: object) -> bool:
    """Return True for numbers, fixed words and values that Metier created itself."""
    if has_mark(kind, MadeHere):
        return True
    kind = get_args(kind)[0] if get_origin(kind) is Annotated else kind
    if kind in _TEXTLESS:
        return True
    return get_origin(kind.__value__ if isinstance(kind, TypeAliasType) else kind) is Literal


class RunScope(Struct, frozen=True, kw_only=True):
    """Common fields of all records of a run."""

    run_id: str
    trace_id: str
    redaction_mode: RedactionMode = "redacted"


class EventWriter:
    """Writes payloads as numbered records of one run. Each run has one writer."""

    def __init__(
        self, sink: Sink, cleaner: Cleaner, *, scope: RunScope, clock: Clock, ids: Ids, next_seq: int = 1
    ) -> None:
        self._sink = sink
        self._cleaner = cleaner
        self._scope = scope
        self._clock = clock
        self._ids = ids
        self._next_seq = next_seq

    def now(self) -> datetime:
        return self._clock.now()

    def emit(self, payload: Payload, *, entry: int = 0, turn: int = 0, skill: str = "") -> EventRecord:
        """Write one event in its span. `turn` is used for payloads without a turn of their own."""
        span = get_span(payload, self._scope.run_id)
        own: object = getattr(payload, "turn", None)
        record = EventRecord(
            run_id=self._scope.run_id,
            trace_id=self._scope.trace_id,
            span_id=span.id,
            parent_span_id=span.parent,
            timestamp=self._clock.now(),
            seq=self._next_seq,
            event_type=payload.event_type,
            payload=self._cleaner.clean(payload),
            redaction_mode=self._scope.redaction_mode,
            schema_version=SCHEMA_VERSION,
            entry=entry,
            turn=own if isinstance(own, int) else turn,
            skill=skill,
        )
        self._sink.write(record)
        # After the write: a failed record must not leave a gap, which readers report as damage.
        self._next_seq += 1
        return record

    def close(self) -> None:
        self._sink.close()


def build_cleaner(options: LoggingOptions, redactor: Redactor) -> Cleaner:
    """Build the cleaner of the settings, with the host's redactor."""
    return _build_cleaner(redactor, options.sanitize_control_chars, options.debug_llm_bodies)


@lru_cache(maxsize=MAX_CLEANERS)
def _build_cleaner(redactor: Redactor, sanitizes: bool, keeps_bodies: bool) -> Cleaner:  # noqa: FBT001
    # Shared by all runs of a process, so that they share the strings known to be clean.
    return Cleaner(redactor, sanitize_control_chars=sanitizes, keeps_bodies=keeps_bodies)


def get_redaction_mode(options: LoggingOptions) -> RedactionMode:
    """Return the mode noted in records: `full` if values of generic secret names are not redacted."""
    return "redacted" if options.redact_secrets else "full"


_MODEL_CALLS = frozenset({"llm_request_sent", "llm_response_received", "llm_retry_scheduled", "llm_request_failed"})
_SKILLS = frozenset({"skill_invocation_started", "skill_invocation_finished"})
_QUESTIONS = ("approval_id", "request_id")
RUN = "run"


# Ids are derived from the run and the event's subject, so the start and the end of a step share one id in every process
# and after a resume.
class EventSpan(NamedTuple):
    """The span of an event (run, turn, model call, step, skill or question) and its parent."""

    id: str
    parent: str
    """Empty for the run's own span."""


def get_span(payload: Payload, run_id: str) -> EventSpan:
    own, parent = _name_span(payload)
    return EventSpan(_build_id(run_id, own), _build_id(run_id, parent) if parent else "")


def _name_span(payload: Payload) -> tuple[str, str]:
    """Return the name of an event's span and that of its parent."""
    values = asdict(payload)
    if payload.event_type in _MODEL_CALLS:
        meta = values["meta"]
        attempt = meta.attempt if isinstance(meta, LlmRequestMeta) else 1
        return f"model:{values['turn']}:{attempt}", f"turn:{values['turn']}"
    if payload.event_type in _SKILLS:
        return f"skill:{values['skill_name']}", RUN
    for name in _QUESTIONS:
        if values.get(name):
            return f"{name}:{values[name]}", RUN
    if step := values.get("step_id"):
        turn = str(step).partition(".")[0]
        return f"step:{step}", f"turn:{turn}"
    if isinstance(turn := values.get("turn"), int):
        return f"turn:{turn}", RUN
    return RUN, ""


@lru_cache(maxsize=4096)
def _build_id(run_id: str, name: str) -> str:
    return build_span_id(run_id, name)


_MAX_TEXT_LENGTH = 1_000
"""Longest string that is not summarized."""
_MAX_VALUE_CHARACTERS = 3_000
"""Longest list or object, as JSON with its long strings summarized, that is not summarized itself."""
_FEW_ITEMS, _FEW_CHARACTERS = 20, 400
"""A value with at most this many items and characters fits `_MAX_VALUE_CHARACTERS`, even fully escaped."""
_HEAD = 200


def summarize_bodies(payload: Payload) -> Payload:
    """Summarize long values of calls. Return the same object if none is long."""
    given: JsonValue = getattr(payload, "arguments", None)
    planned: tuple[ActionStep, ...] = getattr(payload, "planned_actions", ())
    if not given and not planned:
        return payload
    changed: dict[str, object] = {}
    if given:
        changed["arguments"] = _summarize(given)
    if planned:
        changed["planned_actions"] = tuple(_summarize_step(step) for step in planned)
    is_changed = any(getattr(payload, name) != new for name, new in changed.items())
    return replace(payload, **changed) if is_changed else payload


def _summarize_step(step: ActionStep) -> ActionStep:
    params = {name: _summarize(value) for name, value in step.params.items()}
    return step if params == step.params else replace(step, params=params)


def _summarize(value: JsonValue) -> JsonValue:
    # Inner values first, so that the names of the arguments stay readable.
    match value:
        case str():
            return value if len(value) <= _MAX_TEXT_LENGTH else _describe(value)
        case list():
            short: JsonValue = [_summarize(item) for item in value]
        case dict():
            short = {name: _summarize(item) for name, item in value.items()}
        case _:
            return value
    return (
        short
        if _is_flat_and_small(short) or len(_render(short)) <= _MAX_VALUE_CHARACTERS
        else _describe(_render(value))
    )


def _is_flat_and_small(value: list[JsonValue] | dict[str, JsonValue]) -> bool:
    # Most calls have a few short strings: their JSON is surely short and need not be rendered to measure it.
    if len(value) > _FEW_ITEMS:
        return False
    texts = (*value, *value.values()) if isinstance(value, dict) else value
    size = 0
    for text in texts:
        if not isinstance(text, str):
            return False
        size += len(text)
    return size <= _FEW_CHARACTERS


def _render(value: JsonValue) -> str:
    return json.dumps(value, ensure_ascii=False)


def _describe(text: str) -> str:
    data = text.encode()
    return f"{text[:_HEAD]}… [{len(text)} characters, {len(data)} bytes, sha256 {hashlib.sha256(data).hexdigest()}]"
