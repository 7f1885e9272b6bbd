"""Foreign schemas: matched with RE2, checked in bounded time, otherwise evaluated like by `jsonschema`."""

import json
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from metier.errors import UsageError
from metier.tools.schemas import SchemaCheck

VALUES: tuple[Any, ...] = (
    0, 1, 1.0, -3, 7.5, True, False, None, "", "a", "aaa", "b1", "é", "x\n", [], [1], [1, 1.0], [1, True], [1, 2, "a"],
    [[1], [1]], [{"a": 1}, {"a": 1.0}], [{"a": 1, "b": 2}, {"b": 2, "a": 1}], ["a", "b"], [0, False], {}, {"a": 1},
    {"a": 1, "b": 2}, {"a": "x", "x1": 2}, {"x1": 1, "x2": "y"}, {"foo": 1, "bar": 2}, {"b": {"a": 1}}, [["a"], [2]],
)  # fmt: skip
SCHEMAS: tuple[dict[str, Any], ...] = (
    {"pattern": "^a+$"}, {"pattern": "a"}, {"pattern": "^\\d"}, {"pattern": "^\\u00e9$"}, {"pattern": "^[^b]*$"},
    {"patternProperties": {"^x": {"type": "integer"}}},
    {"patternProperties": {"^x": {"type": "integer"}}, "additionalProperties": False},
    {"properties": {"a": {}}, "patternProperties": {"^x": True}, "additionalProperties": {"type": "string"}},
    {"propertyNames": {"pattern": "^[a-b]$"}}, {"propertyNames": {"maxLength": 2}},
    {"uniqueItems": True}, {"items": {"uniqueItems": True}}, {"uniqueItems": False},
    {"enum": [1, [1], {"a": 1}, "a"]}, {"enum": [True, [[1], [1]]]}, {"const": {"a": 1}},
    {"const": 1}, {"const": [1, 1]},
    {"properties": {"a": True}, "unevaluatedProperties": False},
    {"properties": {"a": True}, "unevaluatedProperties": {"type": "integer"}},
    {"allOf": [{"properties": {"a": True}}, {"patternProperties": {"^x": True}}], "unevaluatedProperties": False},
    {"anyOf": [{"required": ["a"], "properties": {"a": True}}, {"properties": {"foo": True}}],
     "unevaluatedProperties": False},
    {"if": {"required": ["a"]}, "then": {"properties": {"a": True}}, "else": {"properties": {"foo": True}},
     "unevaluatedProperties": False},
    {"$ref": "#/$defs/base", "unevaluatedProperties": False, "$defs": {"base": {"properties": {"a": True, "b": True}}}},
    {"dependentSchemas": {"a": {"properties": {"a": True, "b": True}}}, "unevaluatedProperties": False},
    {"properties": {"a": True}, "additionalProperties": {"type": "integer"}, "unevaluatedProperties": False},
    {"prefixItems": [{"type": "integer"}], "unevaluatedItems": False},
    {"prefixItems": [True], "contains": {"type": "string"}, "unevaluatedItems": False},
    {"allOf": [{"prefixItems": [True, True]}], "unevaluatedItems": False},
    {"items": {"type": "integer"}, "unevaluatedItems": False},
    {"unevaluatedItems": {"type": "integer"}},
    {"contains": {"type": "integer"}, "minContains": 2}, {"not": {"type": "object"}},
    {"oneOf": [{"type": "integer"}, {"minimum": 0}]}, {"anyOf": [{"type": "string"}, {"minItems": 2}]},
    {"$defs": {"n": {"$anchor": "here", "type": "integer"}}, "items": {"$ref": "#here"}},
    {"$defs": {"n": {"$id": "urn:n", "type": "integer"}}, "items": {"$ref": "urn:n"}},
    {"properties": {"b": {"$ref": "#"}}, "maxProperties": 1},
    {"$dynamicRef": "#/$defs/s", "$defs": {"s": {"type": "string"}}},
    {"dependentRequired": {"a": ["b"]}}, {"multipleOf": 0.5}, {"$schema": "https://json-schema.org/draft/2020-12/schema"},
)  # fmt: skip


@pytest.mark.parametrize("schema", SCHEMAS, ids=json.dumps)
def test_value_validity_matches_the_library(schema: dict[str, Any]) -> None:
    library = Draft202012Validator(schema)

    for value in VALUES:
        expected = library.is_valid(value)  # pyright: ignore[reportUnknownMemberType]
        assert (SchemaCheck("x", schema).get_error(value) == "") == expected, value


def nest_doubly(levels: int) -> dict[str, Any]:
    """Build definitions that refer to the next one twice: the last has 2 to the power of `levels` paths."""
    defs = {f"d{level}": {"allOf": [{"$ref": f"#/$defs/d{level + 1}"}] * 2} for level in range(levels)}
    return {"$ref": "#/$defs/d0", "$defs": {**defs, f"d{levels}": {"minimum": 0}}}


ENDLESS: dict[str, tuple[dict[str, Any], Any]] = {
    "references": (nest_doubly(40), 1),
    "unevaluated properties": ({"unevaluatedProperties": False, **nest_doubly(40)}, {"a": 1}),
    "repeated values": ({"allOf": [{"type": "string"}] * 10_000}, {"a": "x" * 1_000_000}),
    "long enum": ({"items": {"enum": list(range(20_000))}}, [-1] * 20_000),
    "large constants": ({"items": {"enum": [[0] * 900 + [i] for i in range(60)]}},
                        [[0] * 900 + [-1] for _ in range(900)]),
    "wide pattern": ({"items": {"pattern": "(a|b|ab|ba){200}c"}}, ["ab" * 5_000] * 1_000),
    "many patterns": ({"items": {"patternProperties": {f"x{i}": True for i in range(2_000)}}}, [{"k": 1}] * 2_000),
    "pairs of items": ({"items": {"contains": {"not": {}}}}, [list(range(2_000))] * 2_000),
}  # fmt: skip


@pytest.mark.parametrize(("schema", "value"), ENDLESS.values(), ids=ENDLESS)
def test_a_validation_that_takes_too_long_stops_with_a_message(schema: dict[str, Any], value: Any) -> None:
    wrong = SchemaCheck("x", schema).get_error(value)

    assert "takes more than 200,000 steps" in wrong


@pytest.mark.parametrize("schema", [
    {"pattern": "^(a+)+$"},
    {"patternProperties": {"^(a+)+$": False}, "additionalProperties": {"type": "integer"}},
    {"propertyNames": {"pattern": "^(a+)+$"}},
    {"unevaluatedProperties": {"type": "integer"}, "allOf": [{"patternProperties": {"^(a+)+$": True}}]},
    {"$ref": "#/$defs/text", "$defs": {"text": {"pattern": "^(a+)+$"}}},
    {"$schema": "https://json-schema.org/draft/2020-12/schema", "anyOf": [{"pattern": "^(a+)+$"}]},
    {"allOf": [{"$schema": "http://json-schema.org/draft-07/schema#", "pattern": "^(a+)+$"}]},
    {"$ref": "#/default", "default": {"pattern": "^(a+)+$"}},
], ids=json.dumps)  # fmt: skip
def test_a_pattern_takes_linear_time_in_every_position(schema: dict[str, Any]) -> None:
    text = "a" * 60 + "!"

    assert SchemaCheck("x", schema).get_error({text: text} if "ropert" in json.dumps(schema) else text) != ""


def test_uniqueness_of_many_objects_is_checked_without_pairwise_comparison() -> None:
    check = SchemaCheck("x", {"uniqueItems": True})
    items: list[Any] = [{"a": number} for number in range(20_000)]

    assert check.get_error(items) == ""
    assert check.get_error([*items, {"a": 7.0}]) != ""


REFUSED: tuple[tuple[dict[str, Any], str], ...] = (
    ({"pattern": "(?=a)b"}, "the pattern '(?=a)b' cannot be used: invalid perl operator: (?="),
    ({"properties": {"n": {"pattern": "(a)\\1"}}}, "the pattern '(a)\\\\1' cannot be used"),
    ({"$defs": {"n": {"patternProperties": {"(?!x)": {}}}}}, "the pattern '(?!x)' cannot be used"),
    ({"pattern": "a" * 5_000}, "it has 5000 characters, at most 4000 are allowed"),
    ({"pattern": "["}, "the pattern '[' cannot be used"),
    ({"pattern": "x{1,1000}" * 200}, "cannot be used"),
    ({"description": "x" * 300_000}, "at most 256000 are allowed"),
    ({"allOf": [{}] * 60_000}, "takes more than 1,000,000 steps"),
)


@pytest.mark.parametrize(("schema", "why"), REFUSED)
def test_an_unusable_schema_is_rejected_with_the_reason(schema: dict[str, Any], why: str) -> None:
    with pytest.raises(UsageError) as refused:
        SchemaCheck("x", schema)

    assert why in refused.value.message


@pytest.mark.parametrize("levels", [150, 100_000])
def test_a_deeply_nested_schema_is_refused(levels: int) -> None:
    schema: dict[str, Any] = {"pattern": "a"}
    for _ in range(levels):
        schema = {"not": schema}

    with pytest.raises(UsageError, match="nested"):
        SchemaCheck("x", schema)


@pytest.mark.parametrize("schema", [
    {"enum": [{"pattern": "(?=a)"}]},
    {"const": {"patternProperties": {"(?=a)": 1}}},
    {"properties": {"pattern": {"type": "string"}, "patternProperties": {"type": "object"}}, "not": {}},
    {"$schema": "http://json-schema.org/draft-07/schema#", "pattern": "a"},
])  # fmt: skip
def test_a_schema_with_a_pattern_in_data_or_another_draft_is_accepted(schema: dict[str, Any]) -> None:
    SchemaCheck("x", schema)  # raises where it refuses


@pytest.mark.parametrize("schema", [
    {"$ref": "#/x", "x": {"required": 3, "properties": 7}},
    {"$ref": "#/x", "x": 5},
    {"$ref": "#/x/enum/0", "x": {"enum": [{"pattern": "(?=a)"}]}},
    {"multipleOf": 1e-300},
])  # fmt: skip
def test_a_reference_to_a_non_schema_is_an_error_and_not_a_crash(schema: dict[str, Any]) -> None:
    check = SchemaCheck("x", schema)

    assert "cannot be used" in check.get_error({"a": 1}) + check.get_error("text") + check.get_error(10**400)


def test_no_reference_is_fetched() -> None:
    check = SchemaCheck("x", {"$ref": "http://127.0.0.1:9/schema.json"})

    assert "only references inside the schema are followed" in check.get_error(1)
