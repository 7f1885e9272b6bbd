"""The part of a JSON schema that Anthropic can hold a reply to. The rest is checked when the reply is here."""

from pydantic import JsonValue

_KEPT = frozenset(
    {"type", "enum", "const", "description", "title", "default", "$ref", "required", "additionalProperties", "format"}
)
_FORMATS = frozenset({"date-time", "time", "date", "duration", "email", "hostname", "uri", "ipv4", "ipv6", "uuid"})
_MAPS = ("properties", "$defs", "definitions")
_LISTS = ("anyOf", "allOf")


def close_schema(schema: JsonValue) -> dict[str, JsonValue] | None:
    """The schema with every object closed and without limits on values; None where it has open objects or `oneOf`."""
    if not isinstance(schema, dict) or "oneOf" in schema:
        return None
    closed: dict[str, JsonValue] = {
        key: value for key, value in schema.items() if key in _KEPT and (key != "format" or value in _FORMATS)
    }
    if schema.get("type") == "object" or "properties" in schema:
        if not schema.get("properties") or schema.get("additionalProperties", False) not in (False, None):
            return None
        closed["additionalProperties"] = False
    for key in (*_MAPS, *_LISTS, "items"):
        if key not in schema:
            continue
        part = _close_part(schema[key], is_node=key == "items")
        if part is None:
            return None
        closed[key] = part
    return closed


def _close_part(part: JsonValue, *, is_node: bool) -> JsonValue:
    if is_node:
        return close_schema(part)
    if isinstance(part, dict):
        mapped = {name: close_schema(each) for name, each in part.items()}
        return None if None in mapped.values() else {**mapped}
    if isinstance(part, list):
        listed = [close_schema(each) for each in part]
        return None if None in listed else [*listed]
    return None
