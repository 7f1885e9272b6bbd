"""Sessions that pages show: what an answer must hold."""

from pydantic import JsonValue


def is_part(wanted: JsonValue, found: JsonValue) -> bool:
    """Everything that is wanted is there; there may be more."""
    if isinstance(wanted, dict):
        return isinstance(found, dict) and all(key in found and is_part(wanted[key], found[key]) for key in wanted)
    if isinstance(wanted, list):
        return isinstance(found, list) and all(is_part(*pair) for pair in zip(wanted, found, strict=False))
    return wanted == found
