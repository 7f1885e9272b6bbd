"""The skill that infers schemas: real data in, a schema with evidence out, over several turns."""

import json
import os
from pathlib import Path

import pytest
from jsonschema import Draft202012Validator
from pydantic import JsonValue

from metier import create_agent_adapter, create_executor
from metier.capabilities.adapter import AgentAdapter
from metier.capabilities.protocol import AgentResponse

pytestmark = pytest.mark.slow

PEOPLE = """id,zip,joined,score,active
1,01234,2024-01-01,2.5,true
2,99999,2024-02-01,3,false
3,10115,2024-03-01,,true
"""
TYPES = """
/** Somebody who logs in */
export interface User {
  readonly id: number;
  name?: string | null;
  tags: string[];
  role: "admin" | "guest";
  home: Address;
  extra: Record<string, unknown>;
}
interface Address { street: string; since: Date }
"""


@pytest.fixture
def adapter(tmp_path: Path) -> AgentAdapter:
    return create_agent_adapter(create_executor(tmp_path, home=tmp_path, environ=dict(os.environ)))


def infer(adapter: AgentAdapter, data: JsonValue, **inputs: JsonValue) -> AgentResponse:
    response = adapter.invoke("schema-infer", {"data": data, **inputs}, "ctx")
    assert response.state == "completed", response
    return response


def schema_of(response: AgentResponse) -> dict[str, JsonValue]:
    schema = response.outputs["schema"]
    assert isinstance(schema, dict)
    Draft202012Validator.check_schema(schema)
    return {key: value for key, value in schema.items() if key != "$schema"}


def test_table_yields_types_formats_and_optional_fields_with_evidence(adapter: AgentAdapter) -> None:
    response = infer(adapter, PEOPLE)

    assert schema_of(response) == {
        "type": "object",
        "properties": {
            "id": {"type": "integer"},
            "zip": {"type": "string"},
            "joined": {"type": "string", "format": "date"},
            "score": {"type": "number"},
            "active": {"type": "boolean"},
        },
        "required": ["id", "zip", "joined", "active"],
    }
    trace = response.outputs["trace"]
    assert isinstance(trace, dict)
    assert set(trace) == {"/", *(f"/properties/{name}" for name in ("id", "zip", "joined", "score", "active"))}
    claims = json.dumps(trace)
    assert "present in 2 of 3 records" in claims
    assert response.outputs["assumption_ratio"] == 0
    assert response.outputs["records_checked"] == 3


def test_nested_records_may_have_gaps_and_mixed_types(adapter: AgentAdapter) -> None:
    records: list[JsonValue] = [
        {"id": 1, "tags": ["a"], "home": {"city": "Bonn"}, "size": 1},
        {"id": 2, "tags": [], "home": {"city": "Ulm", "zip": None}, "size": 1.5},
        {"id": "3", "tags": ["b", "c"], "home": None, "size": 2},
    ]

    schema = schema_of(infer(adapter, records))

    assert schema["properties"] == {
        "id": {"type": ["integer", "string"]},
        "tags": {"type": "array", "items": {"type": "string"}},
        "home": {
            "type": ["null", "object"],
            "properties": {"city": {"type": "string"}, "zip": {}},
            "required": ["city"],
        },
        "size": {"type": "number"},
    }
    assert not list(Draft202012Validator(schema).iter_errors(records[2]))  # pyright: ignore[reportUnknownMemberType]


def test_few_repeated_values_are_an_enum_and_json_lines_are_records(adapter: AgentAdapter) -> None:
    lines = "\n".join(json.dumps({"level": ("info", "warn")[n % 2], "n": n}) for n in range(20))

    properties = schema_of(infer(adapter, lines))["properties"]

    assert properties == {"level": {"type": "string", "enum": ["info", "warn"]}, "n": {"type": "integer"}}


def test_types_of_typescript_become_definitions_with_their_lines(adapter: AgentAdapter) -> None:
    response = infer(adapter, TYPES)

    schema = schema_of(response)
    assert schema["title"] == "User"
    assert schema["required"] == ["id", "tags", "role", "home", "extra"]
    assert schema["properties"] == {
        "id": {"type": "number"},
        "name": {"anyOf": [{"type": "string"}, {"type": "null"}]},
        "tags": {"type": "array", "items": {"type": "string"}},
        "role": {"enum": ["admin", "guest"]},
        "home": {"$ref": "#/$defs/Address"},
        "extra": {"type": "object", "additionalProperties": {}},
    }
    assert schema["$defs"] == {
        "Address": {
            "type": "object",
            "properties": {"street": {"type": "string"}, "since": {"type": "string", "format": "date-time"}},
            "required": ["street", "since"],
        }
    }
    assert "line 6 of the source" in json.dumps(response.outputs["trace"])


def test_description_in_json_is_accepted_and_checked_against_samples(adapter: AgentAdapter) -> None:
    described: JsonValue = {"id": "integer", "name?": "string", "tags": "string[]"}

    assert schema_of(infer(adapter, described, samples=[{"id": 1, "tags": ["a"]}]))["required"] == ["id", "tags"]
    wrong = adapter.invoke("schema-infer", {"data": described, "samples": [{"id": "x", "tags": []}]}, "other")
    assert (wrong.state, wrong.metadata.agent_state_detail) == ("failed", "validation_failed")
    assert "record 1: $.id is string, not integer" in wrong.message


def test_data_is_asked_for_first_and_its_type_if_ambiguous(adapter: AgentAdapter) -> None:
    first = adapter.invoke("schema-infer", {}, "ctx")
    second = adapter.invoke("schema-infer", {"data": "name: Ada, age: 3\nname: Bob, age: 4"}, "ctx", resume=True)
    third = adapter.invoke("schema-infer", {"source_type": "pdf"}, "ctx", resume=True)
    last = adapter.invoke("schema-infer", {"source_type": "text"}, "ctx", resume=True)

    assert first.message.startswith("Give the data, a path, or parsed sections with their source type")
    assert second.input_request is not None
    assert [field.name for field in second.input_request.missing_fields] == ["source_type"]
    assert third.metadata.agent_state_detail == "invalid_input"
    assert last.state == "completed"


def test_parsed_sections_and_their_source_type_complete_the_second_turn(adapter: AgentAdapter) -> None:
    sections: JsonValue = {"users": [{"id": 1, "name": "Ada"}, {"id": 2}], "title": "People"}

    first = adapter.invoke("schema-infer", {}, "ctx")
    second = adapter.invoke("schema-infer", {"parsed_sections": sections, "source_type": "TYPE1"}, "ctx", resume=True)

    assert first.input_request is not None
    asked = {field.name: field.required for field in first.input_request.missing_fields}
    assert asked == {"data": False, "path": False, "parsed_sections": False, "source_type": False}
    assert (second.state, second.outputs["source_type"]) == ("completed", "TYPE1")
    properties = schema_of(second)["properties"]
    assert properties == {
        "users": {
            "type": "array",
            "items": {
                "type": "object",
                "properties": {"id": {"type": "integer"}, "name": {"type": "string"}},
                "required": ["id"],
            },
        },
        "title": {"type": "string"},
    }


def test_incomplete_parsed_sections_and_source_type_ask_for_the_missing_part(adapter: AgentAdapter) -> None:
    no_type = adapter.invoke("schema-infer", {"parsed_sections": {"a": [{"x": 1}, {"x": 2}]}}, "one")
    no_sections = adapter.invoke("schema-infer", {"source_type": "TYPE2"}, "two")
    done = adapter.invoke("schema-infer", {"source_type": "TYPE2"}, "one", resume=True)
    unknown = adapter.invoke("schema-infer", {"data": "a: 1", "source_type": "TYPE2"}, "three")

    assert no_type.input_request is not None
    assert no_sections.input_request is not None
    assert [field.name for field in no_type.input_request.missing_fields] == ["source_type"]
    assert "parsed_sections" in [field.name for field in no_sections.input_request.missing_fields]
    assert done.state == "completed"
    assert unknown.metadata.agent_state_detail == "invalid_input"


def test_path_alone_answers_the_question_for_data(adapter: AgentAdapter, tmp_path: Path) -> None:
    (tmp_path / "people.csv").write_text(PEOPLE, encoding="utf-8")
    adapter.invoke("schema-infer", {}, "ctx")

    assert adapter.invoke("schema-infer", {"path": "people.csv"}, "ctx", resume=True).state == "completed"


def test_low_confidence_asks_for_more_records_once(adapter: AgentAdapter) -> None:
    first = adapter.invoke("schema-infer", {"data": [{"a": None, "b": []}]}, "ctx")
    enough = adapter.invoke("schema-infer", {"data": [{"a": 1, "b": [1]}, {"a": 2, "b": []}]}, "ctx", resume=True)
    adapter.invoke("schema-infer", {"data": [{"a": None, "b": []}]}, "stubborn")
    stubborn = adapter.invoke("schema-infer", {"data": [{"a": None, "b": []}]}, "stubborn", resume=True)

    assert "give more sample records" in first.message
    assert enough.state == "completed"
    assert stubborn.metadata.agent_state_detail == "too_many_assumptions"


def test_one_record_does_not_make_its_fields_required(adapter: AgentAdapter) -> None:
    response = infer(adapter, [{"a": 1, "b": "x", "c": True}])

    assert "required" not in schema_of(response)
    assert float(str(response.outputs["assumption_ratio"])) <= 0.3


def test_file_in_the_workspace_is_read_and_none_outside(adapter: AgentAdapter, tmp_path: Path) -> None:
    (tmp_path / "people.csv").write_text(PEOPLE, encoding="utf-8")

    named = adapter.invoke("schema-infer", {"task": "infer a schema of people.csv please"}, "one")
    outside = adapter.invoke("schema-infer", {"path": "../secrets.csv"}, "two")

    assert named.state == "completed"
    assert Path(named.artifacts[0]).name == "schema.json"
    assert "outside the workspace" in outside.message


@pytest.mark.parametrize(
    ("data", "kind"),
    [
        ("{", "json"),
        ("a,b\n1", "csv"),
        ("a,a\n1,2", "csv"),
        ("hello", "text"),
        ("class X {}", "typescript"),
        ("5", "description"),
    ],
)
def test_data_of_the_wrong_kind_is_asked_for_again(adapter: AgentAdapter, data: str, kind: str) -> None:
    response = adapter.invoke("schema-infer", {"data": data, "source_type": kind}, "ctx")

    assert response.state == "input_required"
    assert f"cannot be read as {kind}" in response.message
