"""Sessions on pages: the required contents of answers."""

from pydantic import JsonValue


def is_part(wanted: JsonValue, found: JsonValue) -> bool:
    """Return whether all expected parts are present."""
    if isinstance(wanted, dict):
        return isinstance(found, dict) and all(key in found and is_part(wanted[key], found[key]) for key in wanted)
    if isinstance(wanted, list):
        return isinstance(found, list) and all(is_part(*pair) for pair in zip(wanted, found, strict=False))
    return wanted == found
