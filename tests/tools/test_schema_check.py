"""Schemas are evaluated like by `jsonschema`, whether or not it is loaded."""

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
def test_schema_validity_matches_the_specification(keyword: str) -> None:
    for value in VALUES:
        for schema in ({keyword: value}, {"properties": {"x": {keyword: value}}}, {"anyOf": [{keyword: value}]}):
            assert _is_accepted(schema) == _is_valid(schema), schema


@pytest.mark.parametrize("keyword", ["type", "enum", "properties", "required", "additionalProperties", "items"])
def test_value_validity_matches_the_specification(keyword: str) -> None:
    settings: dict[str, tuple[Any, ...]] = {
        "type": ("string", "integer", "number", "boolean", "array", "object", "null", ["string", "array"]),
        "enum": ([1], [True], ["string"], [None], [[]]),
        "properties": ({"a": {"type": "integer"}}, {"a": {"enum": [1]}}, {"a": False}),
        "required": (["a"], ["a", "b"]),
        "additionalProperties": (False, True, {"type": "integer"}),
        "items": ({"type": "string"}, False, {"enum": ["a"]}),
    }
    for setting in settings[keyword]:
        more: tuple[Any, ...] = ({"a": 1, "b": 2}, {"a": True}, 1.0)
        for value in (*VALUES, *more):
            schema = {keyword: setting}
            whole = Draft202012Validator(schema).is_valid(value)  # pyright: ignore[reportUnknownMemberType]
            assert (SchemaCheck("x", schema).get_error(value) == "") == whole, (schema, value)


@pytest.mark.parametrize("levels", [700, 5_000])
@pytest.mark.parametrize("keyword", ["items", "allOf", "properties"])
def test_a_schema_nested_too_deeply_is_rejected(keyword: str, levels: int) -> None:
    schema: dict[str, Any] = {}
    for _ in range(levels):
        schema = {keyword: {"items": schema, "allOf": [schema], "properties": {"a": schema}}[keyword]}

    with pytest.raises(UsageError, match="nested too deeply"):
        SchemaCheck("x", schema)


def test_patterns_that_are_expensive_to_compile_share_a_limit() -> None:
    costly: list[Any] = [{"pattern": rf"\pL{{29}}{number}"} for number in range(200)]

    with pytest.raises(UsageError, match="compiling its patterns takes more than"):
        SchemaCheck("x", {"anyOf": costly})


def test_patterns_reached_through_references_count_toward_the_limit() -> None:
    schema: dict[str, Any] = {
        "default": [{"pattern": rf"\pL{{28}}{number}"} for number in range(100)],
        "allOf": [{"$ref": f"#/default/{number}"} for number in range(100)],
    }

    assert "the check takes more than" in SchemaCheck("x", schema).get_error("x")


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
