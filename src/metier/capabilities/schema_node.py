"""A JSON Schema that is in a front matter: typed, checked, and closed to the outside. Reads nodes only."""

import math
import re
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, NamedTuple

from pydantic import JsonValue

from metier.definitions.text.yaml_text import Mapping, Node, Scalar, Sequence

if TYPE_CHECKING:
    from referencing.jsonschema import SchemaRegistry


_WHOLE = re.compile(r"[-+]?(?:0|[1-9][0-9]*)")
_NUMBER = re.compile(r"[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?")
_WORDS: dict[str, JsonValue] = {
    **dict.fromkeys(("", "~", "null", "Null", "NULL")),
    **dict.fromkeys(("true", "True", "TRUE"), True),
    **dict.fromkeys(("false", "False", "FALSE"), False),
}
_MAX_DIGITS = 300
_REFERENCES = ("$ref", "$dynamicRef")
_DRAFT = "https://json-schema.org/draft/2020-12/schema"


def json_value(node: Node) -> JsonValue:
    """The value as YAML 1.2 types it: an unquoted `true`, `3` or `null` is one, everything quoted is text."""
    match node:
        case Scalar(value=value, is_plain=True):
            return _typed(value)
        case Scalar(value=value):
            return value
        case Sequence(items=items):
            return [json_value(item) for item in items]
        case Mapping(entries=entries):
            return {entry.key: json_value(entry.value) for entry in entries}


class SchemaFault(NamedTuple):
    """Why a node is no usable JSON Schema, and where."""

    why: str
    line: int


def find_schema_fault(node: Node) -> SchemaFault | None:
    """What is wrong first; nothing when it can be used."""
    if not isinstance(node, Mapping):
        return SchemaFault("it must be a mapping", node.line)
    for key, value, line in _walk(node):
        if key in _REFERENCES and not value.startswith("#"):
            return SchemaFault(
                f"{key} {value!r} leads outside the schema; only references inside it are followed", line
            )
        if key == "$schema" and value.rstrip("#") != _DRAFT:
            return SchemaFault(f"$schema {value!r} is not supported; write {_DRAFT!r} or leave it out", line)
    schema = {entry.key: json_value(entry.value) for entry in node.entries}
    # Loaded only for a skill that has a schema.
    from metier.tools.schema_validator import find_schema_fault as find_fault

    if fault := find_fault(schema):
        return SchemaFault(f"{fault.message[:200]} (at {_render_path(fault.path)})", _get_line(node, list(fault.path)))
    return _find_loose_end(node, schema)


def _find_loose_end(node: Node, schema: dict[str, JsonValue]) -> SchemaFault | None:
    """A reference to a part that the schema does not have: the caller, who gives inputs, could not fix that."""
    from referencing import Registry
    from referencing.exceptions import Unresolvable
    from referencing.jsonschema import DRAFT202012

    empty: SchemaRegistry = Registry()
    resolver = empty.with_resource("", DRAFT202012.create_resource(schema)).resolver()
    for key, value, line in _walk(node):
        if key != "$ref":
            continue
        try:
            resolver.lookup(value)
        except Unresolvable:
            return SchemaFault(f"$ref {value!r} leads to nothing in it", line)
    return None


def _typed(text: str) -> JsonValue:
    """A number that is too long to be one stays text."""
    if text in _WORDS:
        return _WORDS[text]
    if len(text) > _MAX_DIGITS:
        return text
    if _WHOLE.fullmatch(text):
        return int(text)
    return float(text) if _NUMBER.fullmatch(text) and math.isfinite(float(text)) else text


def _walk(node: Node) -> Iterator[tuple[str, str, int]]:
    match node:
        case Mapping(entries=entries):
            for entry in entries:
                if isinstance(entry.value, Scalar):
                    yield entry.key, entry.value.value, entry.line
                yield from _walk(entry.value)
        case Sequence(items=items):
            for item in items:
                yield from _walk(item)
        case Scalar():
            return


def _render_path(path: Iterable[str | int]) -> str:
    """As `jsonschema` writes it."""
    return "$" + "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in path)


def _get_line(node: Node, path: list[str | int]) -> int:
    """The line of the deepest part of a path that is there."""
    line = node.line
    for step in path:
        if isinstance(node, Mapping) and (entry := node.find(str(step))):
            node, line = entry.value, entry.line
        elif isinstance(node, Sequence) and isinstance(step, int) and step < len(node.items):
            node = node.items[step]
            line = node.line
        else:
            break
    return line
