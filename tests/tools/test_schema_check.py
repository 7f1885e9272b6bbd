"""Schemas are judged as `jsonschema` judges them, whether or not it had to be loaded."""

from typing import Any

import pytest
from jsonschema import Draft202012Validator
from jsonschema.exceptions import SchemaError

from metier.errors import UsageError
from metier.tools.schemas import SchemaCheck

VALUES: tuple[Any, ...] = (
    "string", "other", "", [], ["a"], ["a", "a"], [1], [{}], [{"type": 3}], {}, {"a": {}}, {"a": 1}, {"a": {"enum": 3}},
    0, 1, -1, 1.5, True, None,
)  # fmt: skip
KEYWORDS = (
    "type", "title", "description", "default", "const", "enum", "minLength", "maxItems", "minimum", "exclusiveMaximum",
    "anyOf", "allOf", "items", "additionalProperties", "properties", "required", "pattern", "$ref", "$defs", "format",
)  # fmt: skip


@pytest.mark.parametrize("keyword", KEYWORDS)
def test_a_schema_is_valid_where_the_specification_says_so(keyword: str) -> None:
    for value in VALUES:
        for schema in ({keyword: value}, {"properties": {"x": {keyword: value}}}, {"anyOf": [{keyword: value}]}):
            assert _is_accepted(schema) == _is_valid(schema), schema


def _is_accepted(schema: dict[str, Any]) -> bool:
    try:
        SchemaCheck("x", schema)
    except UsageError:
        return False
    return True


def _is_valid(schema: dict[str, Any]) -> bool:
    try:
        Draft202012Validator.check_schema(schema)
    except SchemaError:
        return False
    return True
