"""The form that a result must have: a Python type or a JSON schema, and how text becomes a value of it."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import cast

from pydantic import JsonValue, PydanticUserError, TypeAdapter, ValidationError
from pydantic.errors import PydanticSchemaGenerationError

from metier.errors import UsageError
from metier.tools.schemas import SchemaCheck


@dataclass(frozen=True, slots=True, kw_only=True)
class OutputForm[T]:
    """What a run shall return. Made by `read_form`."""

    schema: dict[str, JsonValue]
    adapter: TypeAdapter[T] | None
    """Converts JSON to the Python type; None where only a schema was given."""

    def parse(self, text: str) -> T:
        """The value that a text holds. Raises `ValueError` with what is wrong with it."""
        if self.adapter is not None:
            try:
                return self.adapter.validate_json(text)
            except ValidationError as error:
                raise ValueError(_describe(error)) from error
        try:
            value: JsonValue = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise ValueError(f"it is no JSON: {error}") from error
        if wrong := SchemaCheck("output_schema", self.schema).find_error(value):
            raise ValueError(wrong)
        return cast("T", value)  # without an adapter the type of the value is JSON


def read_form[T](given: type[T] | Mapping[str, object] | None) -> OutputForm[T] | None:
    """Nothing for no schema. Raises `UsageError` for a type without a JSON schema, and for a schema that is none."""
    if given is None:
        return None
    if isinstance(given, Mapping):
        form: OutputForm[T] = OutputForm(schema=cast("dict[str, JsonValue]", dict(given)), adapter=None)
    else:
        try:
            adapter = TypeAdapter(given)
            form = OutputForm(schema=cast("dict[str, JsonValue]", adapter.json_schema()), adapter=adapter)
        except (PydanticUserError, PydanticSchemaGenerationError) as error:
            raise UsageError(f"{given!r} cannot be the output_schema of a run: {error}") from error
    SchemaCheck("output_schema", form.schema)
    return form


def _describe(error: ValidationError) -> str:
    wrong = [f"{each['msg']} (at {'.'.join(map(str, each['loc'])) or 'the top'})" for each in error.errors()]
    return "; ".join(wrong)
