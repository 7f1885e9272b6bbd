"""Check a value against a JSON Schema and say in one sentence what is wrong. Never follows a reference outside it.

Most schemas and values are plain, and are judged here; `jsonschema` costs a process more than a short run does, and is
loaded for the first one that says more.
"""

import json
from collections.abc import Callable
from functools import lru_cache
from typing import TYPE_CHECKING, cast

from pydantic import JsonValue

from metier.errors import UsageError

if TYPE_CHECKING:
    from jsonschema import Draft202012Validator
    from jsonschema.exceptions import ValidationError

_SHOWN_CHARACTERS = 300
_MOST_ERRORS = 8
_PLAIN_KEYS = frozenset(
    {"type", "properties", "required", "additionalProperties", "items", "enum", "default", "title", "description"}
)
_TYPES: dict[str, tuple[type, ...]] = {
    "string": (str,),
    "integer": (int,),
    "boolean": (bool,),
    "number": (int, float),
    "array": (list,),
    "object": (dict,),
    "null": (type(None),),
}
_TYPE_WORDS = frozenset(_TYPES)


@lru_cache(maxsize=512)
def _find_problem(text: str) -> str:
    """What is wrong with a schema, by its text: most runs of a process have the same tools."""
    schema: JsonValue = json.loads(text)
    if _is_surely_valid(schema):
        return ""
    from jsonschema import Draft202012Validator
    from jsonschema.exceptions import SchemaError

    try:
        Draft202012Validator.check_schema(cast("dict[str, JsonValue]", schema))
    except SchemaError as error:
        return error.message
    return ""


def _is_surely_valid(schema: JsonValue) -> bool:
    """Nothing but words that are checked here. True is certain; False is for the whole check to say."""
    if not isinstance(schema, dict):
        return isinstance(schema, bool)
    return all(word in _WORDS and _WORDS[word](value) for word, value in schema.items())


def _is_text(value: JsonValue) -> bool:
    return isinstance(value, str)


def _is_count(value: JsonValue) -> bool:
    return type(value) is int and value >= 0


def _is_number(value: JsonValue) -> bool:
    return type(value) in (int, float)


def _are_schemas(value: JsonValue) -> bool:
    return isinstance(value, list) and bool(value) and all(map(_is_surely_valid, value))


def _is_mapping_of_schemas(value: JsonValue) -> bool:
    return isinstance(value, dict) and all(map(_is_surely_valid, value.values()))


def _are_names(value: JsonValue) -> bool:
    return isinstance(value, list) and all(map(_is_text, value)) and len(set(map(str, value))) == len(value)


def _is_type(value: JsonValue) -> bool:
    return isinstance(value, str) and value in _TYPE_WORDS


def _words(value: JsonValue) -> list[str]:
    """Of a keyword that has one word or several."""
    return [str(word) for word in value] if isinstance(value, list) else [str(value)]


_WORDS: dict[str, Callable[[JsonValue], bool]] = {
    "type": lambda value: _is_type(value) or (_are_names(value) and value != [] and {*_words(value)} <= _TYPE_WORDS),
    **dict.fromkeys(("title", "description"), _is_text),
    **dict.fromkeys(("default", "const"), lambda _value: True),
    "enum": lambda value: isinstance(value, list),
    **dict.fromkeys(("minLength", "maxLength", "minItems", "maxItems"), _is_count),
    **dict.fromkeys(("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"), _is_number),
    **dict.fromkeys(("anyOf", "oneOf", "allOf"), _are_schemas),
    **dict.fromkeys(("items", "additionalProperties"), _is_surely_valid),
    "properties": _is_mapping_of_schemas,
    "required": _are_names,
}
"""What the value of each keyword must be, for the keywords that tools are described with."""


def _surely_holds(schema: JsonValue, value: JsonValue) -> bool:
    """The value is what the schema asks for. True is certain; False is for the whole check to say."""
    if not isinstance(schema, dict) or not schema.keys() <= _PLAIN_KEYS:
        return schema is True
    if "type" in schema and not _is_of(value, schema["type"]):
        return False
    if "enum" in schema and not _is_among(value, schema["enum"]):
        return False
    if isinstance(value, list):
        return all(_surely_holds(schema.get("items", True), each) for each in value)
    return not isinstance(value, dict) or _surely_fits(schema, value)


def _is_of(value: JsonValue, kind: JsonValue) -> bool:
    if isinstance(kind, str):
        return type(value) in _TYPES.get(kind, ())
    return any(type(value) in _TYPES.get(word, ()) for word in _words(kind))


def _surely_fits(schema: dict[str, JsonValue], value: dict[str, JsonValue]) -> bool:
    properties, required = schema.get("properties", {}), schema.get("required", [])
    if (
        not isinstance(properties, dict)
        or not isinstance(required, list)
        or not all(map(value.__contains__, map(str, required)))
    ):
        return False
    rest = schema.get("additionalProperties", True)
    return all(_surely_holds(properties.get(name, rest), each) for name, each in value.items())


def _is_among(value: JsonValue, words: JsonValue) -> bool:
    """`True` is no `1` here, though Python has them equal."""
    return isinstance(words, list) and any(type(word) is type(value) and word == value for word in words)


class SchemaCheck:
    """One schema, ready to check many values."""

    def __init__(self, name: str, schema: dict[str, JsonValue]) -> None:
        """Raises `UsageError` when the schema itself is not valid; `name` says whose it is."""
        if problem := _find_problem(json.dumps(schema)):
            raise UsageError(f"Tool {name!r} has an invalid schema: {problem}")
        self._schema = schema
        self._validator: Draft202012Validator | None = None
        """Made when it is first asked: of the many tools that a run is offered it calls a few."""

    def list_errors(self, value: JsonValue) -> list[str]:
        """Everything that is wrong and where, by its place, the first ones."""
        if not (best := self.find_error(value)) or self._validator is None:
            return [best] if best else []
        from referencing.exceptions import Unresolvable

        try:
            errors = cast("list[ValidationError]", list(self._validator.iter_errors(value)))  # pyright: ignore[reportUnknownMemberType]
        except (Unresolvable, RecursionError):
            return [best]
        told = [f"{error.message[:_SHOWN_CHARACTERS]} (at {error.json_path})" for error in errors[:_MOST_ERRORS]]
        return told if len(told) > 1 else [best]

    def describe_errors(self, value: JsonValue) -> str:
        """All of them in one line, for a model that is to send it again; empty when nothing is wrong."""
        return "; ".join(self.list_errors(value))

    def find_error(self, value: JsonValue) -> str:
        """What is wrong and where; empty when nothing is."""
        if _surely_holds(self._schema, value):
            return ""
        from jsonschema import Draft202012Validator
        from jsonschema.exceptions import best_match  # pyright: ignore[reportUnknownVariableType]
        from referencing import Registry
        from referencing.exceptions import Unresolvable

        if self._validator is None:
            # An empty registry retrieves nothing: a schema must not make the agent fetch an address.
            self._validator = Draft202012Validator(self._schema, registry=Registry())
        try:
            # The stubs of jsonschema leave both of these open.
            errors = self._validator.iter_errors(value)  # pyright: ignore[reportUnknownMemberType]
            error = cast("ValidationError | None", best_match(errors))
        except Unresolvable as unresolvable:
            return f"its schema refers to {unresolvable.ref!r}, and only references inside the schema are followed"
        except RecursionError:
            return "it is nested too deeply"
        return f"{error.message[:_SHOWN_CHARACTERS]} (at {error.json_path})" if error is not None else ""
