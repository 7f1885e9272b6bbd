"""Check a value against a JSON Schema and describe the problem in one sentence. Never follows references outside it.

Most schemas and values are simple and are checked here, in linear time. `jsonschema` takes longer to import than a
short run, so `schema_validator` is loaded only for the first schema that needs it.
"""

import json
from collections.abc import Callable
from functools import lru_cache, partial
from typing import TYPE_CHECKING, cast

from anyio.to_thread import run_sync
from pydantic import JsonValue

from metier.errors import UsageError

if TYPE_CHECKING:
    from metier.tools.schema_validator import BoundedValidator, Validation

MAX_STEPS = 200_000
"""Limit of one check on the event loop: about half a second."""
MAX_THREAD_STEPS = 1_000_000
"""Limit of one check in a thread."""
_SHOWN_CHARACTERS = 300
_MAX_ERRORS = 8
_MAX_PLAIN_CHARACTERS = 64_000
_MAX_PLAIN_WORDS = 100
"""Size of an `enum` that is checked here: comparing one by one is cheap only for a few words."""
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
def _get_problem(text: str) -> str:
    """Return the problem of a schema. Cached by its text, because most runs of a process have the same tools."""
    schema: JsonValue = json.loads(text)
    if len(text) <= _MAX_PLAIN_CHARACTERS and _is_surely_valid(schema):
        return ""
    from metier.tools.schema_validator import find_schema_fault

    fault = find_schema_fault(cast("dict[str, JsonValue]", schema))
    return fault.message[:_SHOWN_CHARACTERS] if fault else ""


def _is_surely_valid(schema: JsonValue) -> bool:
    """Return True if the schema is certainly valid; False means that the full check has to decide."""
    if not isinstance(schema, dict):
        return isinstance(schema, bool)
    return all(word in _WORDS and _WORDS[word](value) for word, value in schema.items())


def _is_text(value: JsonValue) -> bool:
    return isinstance(value, str)


def _is_count(value: JsonValue) -> bool:
    # By type and not `isinstance`, because in Python `True` is an integer.
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
    """Return the words of a keyword that has one or several."""
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
"""The test for the value of each keyword that simple schemas of tools use."""


def _surely_holds(schema: JsonValue, value: JsonValue) -> bool:
    """Return True if the value certainly satisfies the schema; False means that the full check has to decide."""
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
    """Return True if the value is in an `enum`. Types must agree: in JSON `true` is not `1`, but in Python it is."""
    if not isinstance(words, list) or len(words) > _MAX_PLAIN_WORDS:
        return False
    return any(type(word) is type(value) and word == value for word in words)


class SchemaCheck:
    """The check of one schema, for many values."""

    def __init__(self, name: str, schema: dict[str, JsonValue]) -> None:
        """Raises `UsageError` if the schema itself is invalid; `name` is that of its tool."""
        try:
            problem = _get_problem(json.dumps(schema))
        except RecursionError as error:
            raise UsageError(f"Tool {name!r} has an invalid schema: it is nested too deeply") from error
        if problem:
            raise UsageError(f"Tool {name!r} has an invalid schema: {problem}")
        self._schema = schema
        self._validator: BoundedValidator | None = None
        """Built at the first use, because a run calls only a few of its tools."""

    def list_errors(self, value: JsonValue, *, steps: int = MAX_STEPS) -> list[str]:
        """Return the first errors with their locations."""
        if not (best := self.get_error(value, steps=steps)) or self._validator is None:
            return [best] if best else []
        errors = _render(self._validator.list_errors(value, most=_MAX_ERRORS, steps=steps))
        return errors if len(errors) > 1 else [best]

    def describe_errors(self, value: JsonValue) -> str:
        """Return the errors in one line, for the model to correct the call; empty if the value is valid."""
        return "; ".join(self.list_errors(value))

    def get_error(self, value: JsonValue, *, steps: int = MAX_STEPS) -> str:
        """Return the first problem and its location; empty if valid. Stops after `steps`, which is an error too."""
        if _surely_holds(self._schema, value):
            return ""
        if self._validator is None:
            from metier.tools.schema_validator import BoundedValidator

            self._validator = BoundedValidator(self._schema)
        return "".join(_render(self._validator.get_best_error(value, steps=steps)))

    async def get_error_in_thread(self, value: JsonValue) -> str:
        """Run `get_error` in a thread, for values of any size."""
        if _surely_holds(self._schema, value):
            return ""
        return await run_sync(partial(self.get_error, value, steps=MAX_THREAD_STEPS))

    async def list_errors_in_thread(self, value: JsonValue) -> list[str]:
        """Run `list_errors` in a thread, for values of any size."""
        return await run_sync(partial(self.list_errors, value, steps=MAX_THREAD_STEPS))


def _render(found: "Validation") -> list[str]:
    if found.failure:
        return [found.failure]
    return [f"{error.message[:_SHOWN_CHARACTERS]} (at {error.json_path})" for error in found.errors]
