"""Read JSON of an unknown shape. Each reader gives the empty value of its type where something else stands."""

import json
import re
from typing import NamedTuple, Never, cast

from pydantic import JsonValue

type Wire = dict[str, object]
"""A JSON object on its way to or from a server."""

_SURROGATE = re.compile(rb"\\u[dD][89a-fA-F]")
_ENCODER = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"))


class Arguments(NamedTuple):
    """The arguments of a tool call: the object, or the text where it is none."""

    values: dict[str, JsonValue]
    raw: str = ""


def as_object(value: object) -> Wire:
    return cast("Wire", value) if isinstance(value, dict) else {}  # keys of parsed JSON are strings


def as_list(value: object) -> list[object]:
    return cast("list[object]", value) if isinstance(value, list) else []  # elements are checked by who reads them


def as_objects(value: object) -> list[Wire]:
    """The objects of a list; other elements are left out."""
    return [wire for item in as_list(value) if (wire := as_object(item))]


def as_text(value: object) -> str:
    return value if isinstance(value, str) else ""


def as_count(value: object) -> int:
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else 0


def serialise(value: object) -> bytes:
    """JSON in UTF-8. Half a surrogate pair, which no encoding has, becomes a question mark."""
    return _ENCODER.encode(value).encode(errors="replace")


def parse_json(text: str | bytes) -> object:
    """Strict JSON: `NaN` and `Infinity` are refused, half a surrogate pair is replaced.

    Raises:
        ValueError: It is not JSON, or nests too deeply.
    """
    try:
        value = cast("object", json.loads(text, parse_constant=_refuse_constant))
        if not _SURROGATE.search(text if isinstance(text, bytes) else text.encode(errors="replace")):
            return value
        whole = json.dumps(value, ensure_ascii=False).encode("utf-16", "surrogatepass").decode("utf-16", "replace")
        return cast("object", json.loads(whole))
    except RecursionError as error:
        raise ValueError("JSON nests too deeply") from error


def read_arguments(written: object) -> Arguments:
    """What a model wrote as arguments: an object, or text that should be one. Nothing is a call without arguments."""
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


def _refuse_constant(name: str) -> Never:
    raise ValueError(f"{name} is not JSON")
