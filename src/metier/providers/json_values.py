"""Readers for JSON from servers, which may have any form. Each returns an empty value if it gets another type."""

import json
import re
from typing import NamedTuple, Never, cast

from pydantic import JsonValue

type Wire = dict[str, object]
"""A JSON object on its way to or from a server."""

_SURROGATE = re.compile(rb"\\u[dD][89a-fA-F]")
_ENCODER = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"))


class Arguments(NamedTuple):
    """The arguments of a tool call: an object, or the original text if that isn't one."""

    values: dict[str, JsonValue]
    raw: str = ""


def as_object(value: object) -> Wire:
    return cast("Wire", value) if isinstance(value, dict) else {}  # keys of parsed JSON are strings


def as_list(value: object) -> list[object]:
    return cast("list[object]", value) if isinstance(value, list) else []  # the caller checks the elements


def as_objects(value: object) -> list[Wire]:
    """Return the objects of a list, without other elements."""
    return [wire for item in as_list(value) if (wire := as_object(item))]


def as_text(value: object) -> str:
    return value if isinstance(value, str) else ""


def as_count(value: object) -> int:
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else 0


def serialize(value: object) -> bytes:
    # Lone surrogates can't be encoded; they become question marks.
    return _ENCODER.encode(value).encode(errors="replace")


def parse_json(text: str | bytes) -> object:
    """Parse strict JSON: reject `NaN` and `Infinity`, replace lone surrogates.

    Raises:
        ValueError: The text is not JSON, or nested too deeply.
    """
    try:
        # Not `msgspec.json`: it rejects the lone surrogates that models send.
        value = cast("object", json.loads(text, parse_constant=_reject_constant))
        if not _SURROGATE.search(text if isinstance(text, bytes) else text.encode(errors="replace")):
            return value
        whole = json.dumps(value, ensure_ascii=False).encode("utf-16", "surrogatepass").decode("utf-16", "replace")
        return cast("object", json.loads(whole))
    except RecursionError as error:
        raise ValueError("JSON is nested too deeply") from error


def read_arguments(written: object) -> Arguments:
    """Read the arguments of a tool call: an object, JSON text, or nothing for a call without arguments."""
    if written is None or (isinstance(written, str) and not written.strip()):
        return Arguments({})
    value = written
    if isinstance(written, str):
        try:
            value = parse_json(written)
        except ValueError:
            return Arguments({}, written)
    if not isinstance(value, dict):
        return Arguments({}, written if isinstance(written, str) else json.dumps(written))
    return Arguments(cast("dict[str, JsonValue]", value))  # a parsed JSON object


def _reject_constant(name: str) -> Never:
    raise ValueError(f"{name} is not JSON")
