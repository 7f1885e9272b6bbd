"""A run's question as a flat form for clients, and the submitted form as the run's input.

Forms have texts, numbers, booleans and choices. Other types are entered as JSON text.
"""

import json
from collections.abc import Mapping

from pydantic import JsonValue

from metier.views.user_question import FREE_TEXT, QuestionField, UserQuestion

_PLAIN = ("string", "number", "integer", "boolean")
# Everything that the form fields of MCP may have. Clients reject a form with other keywords.
_KEPT = frozenset(
    {"type", "title", "description", "enum", "enumNames", "oneOf", "default", "minimum", "maximum", "format", "items"}
)
_FORMATS = ("email", "uri", "date", "date-time")


def build_schema(question: UserQuestion) -> dict[str, JsonValue]:
    """Build a flat form with one field for each value. Fields are required unless the question says otherwise."""
    fields = question.fields or FREE_TEXT
    properties: dict[str, JsonValue] = {field.name: _build_field(field) for field in fields}
    return {
        "type": "object",
        "properties": properties,
        "required": [field.name for field in fields if field.required is not False],
    }


def read_values(question: UserQuestion, content: Mapping[str, object] | None) -> dict[str, JsonValue]:
    """Read a submitted form and parse the fields that were entered as JSON text."""
    fields = {field.name: field for field in question.fields}
    values: dict[str, JsonValue] = {}
    for name, value in (content or {}).items():
        field = fields.get(name)
        is_json = field is not None and not _is_text(field) and not _is_plain(field.schema or {})
        values[name] = _read_json(value) if is_json and isinstance(value, str) else _copy(value)
    return values


def _build_field(field: QuestionField) -> JsonValue:
    schema = field.schema or {}
    if _is_text(field):
        return {"type": "string", "title": field.name}
    if not _is_plain(schema):
        described = schema.get("description")
        return {"type": "string", "title": field.name, "description": f"JSON. {described}" if described else "JSON"}
    allowed = {key: value for key, value in schema.items() if key in _KEPT}
    if allowed.get("format") not in _FORMATS:
        allowed.pop("format", None)
    return allowed


def _is_text(field: QuestionField) -> bool:
    """Return whether the question gives a field no schema, at most a description."""
    return field.schema is None or field.schema.keys() <= {"description"}


def _is_plain(schema: Mapping[str, JsonValue]) -> bool:
    items = schema.get("items")
    is_choice = schema.get("type") == "array" and isinstance(items, dict) and ("enum" in items or "anyOf" in items)
    return is_choice or schema.get("type") in _PLAIN


def _read_json(text: str) -> JsonValue:
    try:
        value: JsonValue = json.loads(text)
    except (ValueError, RecursionError):
        return text
    return value


def _copy(value: object) -> JsonValue:
    """Copy a value through JSON, because protocol types leave the items of lists untyped."""
    copied: JsonValue = json.loads(json.dumps(value))
    return copied
