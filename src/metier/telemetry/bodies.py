"""Summaries of long call arguments in the event log: their start, size and hash. Pure.

The journal has everything that a run needs to continue. The event log is for users and log collectors, so it doesn't
repeat written files or long replies.
"""

import hashlib
import json

from msgspec.structs import replace
from pydantic import JsonValue

from metier.decisions import ActionStep
from metier.events.payload import Payload

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
