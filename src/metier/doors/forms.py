"""A question of a run as a flat form, as protocols show it, and what the form was filled in with as the run's values.

Forms have texts, numbers, truth values and choices. What is none of these is asked for as JSON text.
"""

import json
from collections.abc import Mapping

from pydantic import JsonValue

from metier.engine.entries.question import InputAsked
from metier.runtime.questions.answers import list_field_names

_PLAIN = ("string", "number", "integer", "boolean")
_KEPT = frozenset(
    {"type", "title", "description", "enum", "enumNames", "oneOf", "default", "minimum", "maximum", "format", "items"}
)
_FORMATS = ("email", "uri", "date", "date-time")


def build_schema(asked: InputAsked) -> dict[str, JsonValue]:
    """One field for each value that is asked for."""
    given = _read_properties(asked.fields)
    names = list_field_names(asked.fields)
    properties: dict[str, JsonValue] = {name: _build_field(name, given.get(name)) for name in names}
    required = asked.fields.get("required") if isinstance(asked.fields, dict) else None
    wanted = [name for name in names if not isinstance(required, list) or name in required]
    return {"type": "object", "properties": properties, "required": [*wanted]}


def read_values(asked: InputAsked, content: Mapping[str, object] | None) -> dict[str, JsonValue]:
    """What the form was filled in with; fields that were asked for as JSON are read as that where they are."""
    given = _read_properties(asked.fields)
    values: dict[str, JsonValue] = {}
    for name, value in (content or {}).items():
        spec = given.get(name)
        is_json = spec is not None and not _is_plain(spec)
        values[name] = _read_json(value) if is_json and isinstance(value, str) else _copy(value)
    return values


def _read_properties(fields: JsonValue) -> dict[str, JsonValue]:
    properties = fields.get("properties") if isinstance(fields, dict) else None
    return properties if isinstance(properties, dict) else {}


def _build_field(name: str, spec: JsonValue) -> JsonValue:
    if spec is None or not isinstance(spec, dict):
        return {"type": "string", "title": name}
    if not _is_plain(spec):
        described = spec.get("description")
        return {"type": "string", "title": name, "description": f"JSON. {described}" if described else "JSON"}
    kept = {key: value for key, value in spec.items() if key in _KEPT}
    if kept.get("format") not in _FORMATS:
        kept.pop("format", None)
    return kept


def _is_plain(spec: JsonValue) -> bool:
    if not isinstance(spec, dict):
        return False
    items = spec.get("items")
    is_choice = spec.get("type") == "array" and isinstance(items, dict) and ("enum" in items or "anyOf" in items)
    return is_choice or spec.get("type") in _PLAIN


def _read_json(text: str) -> JsonValue:
    try:
        value: JsonValue = json.loads(text)
    except (ValueError, RecursionError):
        return text
    return value


def _copy(value: object) -> JsonValue:
    """By way of JSON: the types of protocols leave the members of a list open."""
    copied: JsonValue = json.loads(json.dumps(value))
    return copied
