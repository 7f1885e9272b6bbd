"""Check a value against a JSON Schema and say in one sentence what is wrong. Never follows a reference outside it."""

import json
from collections.abc import Iterator
from functools import lru_cache
from typing import cast

from jsonschema import Draft202012Validator
from jsonschema.exceptions import SchemaError, ValidationError, best_match  # pyright: ignore[reportUnknownVariableType]
from pydantic import JsonValue
from referencing import Registry
from referencing.exceptions import Unresolvable

from metier.errors import UsageError

_SHOWN_CHARACTERS = 300


@lru_cache(maxsize=512)
def _find_problem(schema: str) -> str:
    """What is wrong with a schema, by its text: most runs of a process have the same tools."""
    try:
        Draft202012Validator.check_schema(json.loads(schema))
    except SchemaError as error:
        return error.message
    return ""


class SchemaCheck:
    """One schema, ready to check many values."""

    def __init__(self, name: str, schema: dict[str, JsonValue]) -> None:
        """Raises `UsageError` when the schema itself is not valid; `name` says whose it is."""
        if problem := _find_problem(json.dumps(schema)):
            raise UsageError(f"Tool {name!r} has an invalid schema: {problem}")
        self._schema = schema
        self._validator: Draft202012Validator | None = None
        """Made when it is first asked: of the many tools that a run is offered it calls a few."""

    def find_error(self, value: JsonValue) -> str:
        """What is wrong and where; empty when nothing is."""
        if not self._schema:
            return ""
        if self._validator is None:
            # An empty registry retrieves nothing: a schema must not make the agent fetch an address.
            self._validator = Draft202012Validator(self._schema, registry=Registry())
        try:
            # The stubs of jsonschema leave both of these open.
            errors: Iterator[ValidationError] = self._validator.iter_errors(value)  # pyright: ignore[reportUnknownMemberType]
            error = cast("ValidationError | None", best_match(errors))
        except Unresolvable as unresolvable:
            return f"its schema refers to {unresolvable.ref!r}, and only references inside the schema are followed"
        except RecursionError:
            return "it is nested too deeply"
        return f"{error.message[:_SHOWN_CHARACTERS]} (at {error.json_path})" if error is not None else ""
