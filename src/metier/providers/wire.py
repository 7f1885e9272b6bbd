"""The wire forms that vendors share: JSON of any form from servers, and names of tools. Pure."""

import hashlib
import json
import re
from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import Never, cast

from pydantic import JsonValue

from metier.messages import ToolCallPart

type Wire = dict[str, object]
"""A JSON object on its way to or from a server."""

_SURROGATE = re.compile(rb"\\u[dD][89a-fA-F]")
# Not msgspec, which raises for lone surrogates. Without ASCII escapes, text in other scripts is half as long.
_ENCODER = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"))


# A server may send any JSON, so each of these readers returns an empty value if it gets another type.
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
        # UTF-16 joins the halves of a pair, and `replace` then only affects those that stand alone.
        whole = json.dumps(value, ensure_ascii=False).encode("utf-16", "surrogatepass").decode("utf-16", "replace")
        return cast("object", json.loads(whole))
    except RecursionError as error:
        raise ValueError("JSON is nested too deeply") from error


def read_call(
    call_id: str, name: object, written: object, *, names: Mapping[str, str], signature: str = ""
) -> ToolCallPart:
    """Read a tool call. `written` is an object, JSON text, or nothing for a call without arguments."""
    sent = as_text(name)
    arguments, raw = _read_arguments(written)
    own = names.get(sent, sent)
    return ToolCallPart(id=call_id, name=own, arguments=arguments, raw_arguments=raw, signature=signature)


def _read_arguments(written: object) -> tuple[dict[str, JsonValue], str]:
    """Return the arguments, or the original text if they are not an object."""
    if written is None or (isinstance(written, str) and not written.strip()):
        return {}, ""
    value = written
    if isinstance(written, str):
        try:
            value = parse_json(written)
        except ValueError:
            return {}, written
    if not isinstance(value, dict):
        return {}, written if isinstance(written, str) else json.dumps(written)
    return cast("dict[str, JsonValue]", value), ""  # a parsed JSON object


def _reject_constant(name: str) -> Never:
    raise ValueError(f"{name} is not JSON")


# Vendors accept at most 64 letters, digits, `_` and `-`. Ours may contain dots and slashes: `notes.search` is sent as
# `notes__search` and `github/issues` as `github___issues`. Names that would be ambiguous get a hash as a suffix, so two
# tools never share a wire name.
_MAX_NAME_LENGTH = 64
_SAFE = re.compile(r"[A-Za-z][A-Za-z0-9_-]{0,63}", re.ASCII)
_SEGMENTS = re.compile(r"[A-Za-z0-9-]+(?:_[A-Za-z0-9-]+)*(?:[./][A-Za-z0-9-]+(?:_[A-Za-z0-9-]+)*)*", re.ASCII)
_HASHED = re.compile(r".*_[0-9a-f]{8}", re.ASCII)
_FORBIDDEN = re.compile(r"[^A-Za-z0-9_-]", re.ASCII)


@lru_cache(maxsize=1024)
def wire_name(name: str) -> str:
    """Return the name on the wire. It depends only on `name`, so history stays valid when the tools change."""
    if _SEGMENTS.fullmatch(name):
        plain = name.replace("/", "___").replace(".", "__")
        # A name that looks hashed is hashed too, or it could equal the hashed form of another.
        if _SAFE.fullmatch(plain) and not _HASHED.fullmatch(plain):
            return plain
    digest = hashlib.sha256(name.encode()).hexdigest()[:8]
    stem = _FORBIDDEN.sub("_", name)[: _MAX_NAME_LENGTH - 11]
    return f"t_{stem}_{digest}" if not stem[:1].isalpha() else f"{stem}_{digest}"


def own_names(names: Iterable[str]) -> dict[str, str]:
    """Map wire names back to our names."""
    return {wire_name(name): name for name in names}
