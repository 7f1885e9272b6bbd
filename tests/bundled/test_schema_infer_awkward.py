"""Awkward data: byte order marks, gaps, broken lines, odd numbers, and all TypeScript type forms."""

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

type Properties = dict[str, dict[str, JsonValue]]

SHOP = """
import type { Other } from "./other";

enum Size { Small = 1, Large, Huge = 10 }
export enum Colour { Red = "red", Blue = 'blue' }

interface Base { id: string }

/** What is sold */
export interface Item extends Base {
  size: Size;
  colour?: Colour | null;
  parts: Array<Item>;
  pair: [string, number?];
  labels: { [key: string]: string };
  note: string | undefined;
  'odd/key': readonly string[][];
  price(currency: string): number;
  onSale: (when: Date) => void;
  other: Other;
  both: Base & { extra: boolean };
  patch: Partial<Base>;
}
"""


@pytest.fixture
def adapter(tmp_path: Path) -> AgentAdapter:
    return create_agent_adapter(create_executor(tmp_path, home=tmp_path, environ=dict(os.environ)))


def ask(adapter: AgentAdapter, **inputs: JsonValue) -> AgentResponse:
    return adapter.invoke("schema-infer", inputs, "ctx")


def find_properties(response: AgentResponse) -> Properties:
    assert response.state == "completed", response
    schema = response.outputs["schema"]
    assert isinstance(schema, dict)
    Draft202012Validator.check_schema(schema)
    properties = schema["properties"]
    assert isinstance(properties, dict)
    return properties  # pyright: ignore[reportReturnType]  each is a schema


@pytest.mark.parametrize(
    ("name", "data"),
    [
        ("marked.csv", b"\xef\xbb\xbfid,name\n1,a\n2,b\n"),
        ("wide.csv", "id,name\n1,a\n2,b\n".encode("utf-16")),
        ("windows.csv", b"id;name\r\n1;a\r\n2;b\r\n"),
        ("quoted.csv", b'"id","name"\n"1","a, b"\n"2","c\nd"\n'),
        ("table.tsv", b"id\tname\n1\ta\n2\tb\n"),
        ("lines.ndjson", b'\xef\xbb\xbf{"id": 1, "name": "a"}\r\n\r\n{"id": 2, "name": "b"}\r\n'),
        ("odd.ndjson", '{"id": 1, "name": "a\u2028b"}\n{"id": 2, "name": "b"}\n'.encode()),
        ("code.json", b'[{"id": 1, "name": "type Foo = string"}, {"id": 2, "name": "interface Bar {}"}]'),
    ],
)
def test_file_is_read_in_any_encoding_and_dialect(
    adapter: AgentAdapter, tmp_path: Path, name: str, data: bytes
) -> None:
    (tmp_path / name).write_bytes(data)

    properties = find_properties(ask(adapter, path=name))

    assert {key: value["type"] for key, value in properties.items()} == {"id": "integer", "name": "string"}


def test_pasted_data_with_a_byte_order_mark_is_json(adapter: AgentAdapter) -> None:
    assert list(find_properties(ask(adapter, data='\ufeff[{"a": 1}, {"a": 2}]'))) == ["a"]


def test_last_cells_of_a_row_may_be_empty_in_a_tab_separated_table(adapter: AgentAdapter) -> None:
    response = ask(adapter, data="a\tb\n1\tx\n2\t\n", source_type="csv")

    assert find_properties(response) == {"a": {"type": "integer"}, "b": {"type": "string"}}


def test_column_without_values_is_a_field_without_a_type(adapter: AgentAdapter) -> None:
    response = ask(adapter, data="a,empty,b\n1,,x\n2,,y\n")

    assert find_properties(response) == {"a": {"type": "integer"}, "empty": {}, "b": {"type": "string"}}
    assert response.outputs["assumptions"] == ["/properties/empty type: no value was seen: any value is allowed"]


def test_table_with_one_column_is_recognized_by_its_file_extension(adapter: AgentAdapter, tmp_path: Path) -> None:
    (tmp_path / "ids.csv").write_text("id\n1\n2\n", encoding="utf-8")

    assert find_properties(ask(adapter, path="ids.csv")) == {"id": {"type": "integer"}}


def test_empty_file_is_distinguished_from_a_wrong_type(adapter: AgentAdapter, tmp_path: Path) -> None:
    (tmp_path / "none.csv").write_text("\n", encoding="utf-8")

    response = ask(adapter, path="none.csv")

    assert response.message.startswith("'none.csv' is empty")
    assert response.input_request is not None
    assert response.input_request.missing_fields[0].name == "data"


@pytest.mark.parametrize(
    ("data", "said"),
    [
        ('{"a": 1}\n{"a": 2}\n{"a": \n{"a": 4}', "line 3: Expecting value"),
        ('[{"a": NaN}]', "NaN is no JSON"),
        ('[{"a": 1e999}]', "the number 1e999 is too large"),
        ("[" * 5000 + "]" * 5000, "nested too deeply"),
        ('a,b\n1,"x\n2,y\n', "unexpected end of data"),
        ("a,b\n1,2\n3\n", "row 3 has 1 cells, the header 2"),
    ],
    ids=["broken line", "nan", "infinite", "deep", "open quote", "short row"],
)
def test_unreadable_data_is_reported_with_its_position(adapter: AgentAdapter, data: str, said: str) -> None:
    kind = "csv" if data.startswith("a,") else "json"

    response = ask(adapter, data=data, source_type=kind)

    assert response.state == "input_required", response
    assert said in response.message


def test_records_nested_too_deeply_are_asked_for_in_parts(adapter: AgentAdapter) -> None:
    response = ask(adapter, data='[{"a": ' * 400 + "1" + "}]" * 400)

    assert response.state == "input_required", response
    assert "nested too deeply" in response.message


def test_numbers_beyond_the_limit_are_strings_and_large_ones_stay_exact(adapter: AgentAdapter) -> None:
    long, large = "9" * 5000, 2**80

    properties = find_properties(ask(adapter, data=f"code,huge,far\n{long},{large},1e999\n{long},{large},1\n"))

    assert {name: schema["type"] for name, schema in properties.items()} == {
        "code": "string",
        "huge": "integer",
        "far": "string",
    }


def test_digits_of_other_scripts_are_strings(adapter: AgentAdapter) -> None:
    data = "n,day\n1\u0662,2024-01-0\u0661\n3,2024-01-02\n"

    assert find_properties(ask(adapter, data=data)) == {"n": {"type": "string"}, "day": {"type": "string"}}


@pytest.mark.parametrize(
    ("values", "format_name"),
    [
        (["2024-02-29", "2024-03-01"], "date"),
        (["2024-02-30", "2024-03-01"], None),
        (["2024-01-01T10:00:00Z", "2024-01-01T10:00:00.5+02:00"], "date-time"),
        (["2024-01-01 10:00", "2024-01-02 11:00"], None),
        (["10:00:00Z", "11:00:00+01:00"], "time"),
        (["10:00:00", "11:00:00"], None),
        (["10.0.0.1", "192.168.0.1"], "ipv4"),
        (["10.0.0.999", "192.168.0.1"], None),
    ],
)
def test_format_is_inferred_only_if_a_validator_agrees(
    adapter: AgentAdapter, values: list[str], format_name: str | None
) -> None:
    records: JsonValue = [{"v": value} for value in values]
    properties = find_properties(ask(adapter, data=records))

    assert properties["v"].get("format") == format_name


def test_names_in_any_script_appear_in_the_trace(adapter: AgentAdapter) -> None:
    records: JsonValue = [{"größe/cm": 1, "~x": "a", "": 2}, {"größe/cm": 2, "~x": "b", "": 3}]
    response = ask(adapter, data=records)

    assert list(find_properties(response)) == ["größe/cm", "~x", ""]
    trace = response.outputs["trace"]
    assert isinstance(trace, dict)
    assert set(trace) == {"/", "/properties/größe~1cm", "/properties/~0x", "/properties/"}


def test_evidence_of_many_inner_records_is_kept_with_one_outer_record(adapter: AgentAdapter) -> None:
    inner: JsonValue = [{"x": number, "y": number} for number in range(5)]
    properties = find_properties(ask(adapter, data=[{"id": 1, "name": "n", "kind": "k", "points": inner}]))

    items = properties["points"]["items"]
    assert isinstance(items, dict)
    assert items["required"] == ["x", "y"]


def test_samples_that_cannot_be_read_are_asked_for(adapter: AgentAdapter) -> None:
    response = ask(adapter, data={"id": "integer"}, samples="[{")

    assert response.state == "input_required"
    assert response.message.startswith("The samples cannot be read as json")


def test_types_in_a_description_are_recognized_or_named(adapter: AgentAdapter) -> None:
    described: JsonValue = {"fields": [{"name": "at", "type": "datetime"}, {"name": "ids", "type": "uuid[]"}]}
    odd: JsonValue = {"fields": [{"name": "at", "type": "moment"}]}

    assert find_properties(ask(adapter, data=described)) == {
        "at": {"type": "string", "format": "date-time"},
        "ids": {"type": "array", "items": {"type": "string", "format": "uuid"}},
    }
    assert "field 'at' has the type 'moment'" in ask(adapter, data=odd, source_type="description").message


def test_typescript_types_are_read_in_many_forms(adapter: AgentAdapter) -> None:
    response = adapter.invoke("schema-infer", {"data": SHOP, "name": "Item"}, "ctx")

    assert response.state == "completed", response
    schema = response.outputs["schema"]
    assert isinstance(schema, dict)
    Draft202012Validator.check_schema(schema)
    assert schema["allOf"] == [
        {"$ref": "#/$defs/Base"},
        {
            "type": "object",
            "properties": {
                "size": {"$ref": "#/$defs/Size"},
                "colour": {"anyOf": [{"$ref": "#/$defs/Colour"}, {"type": "null"}]},
                "parts": {"type": "array", "items": {"$ref": "#"}},
                "pair": {
                    "type": "array",
                    "prefixItems": [{"type": "string"}, {"type": "number"}],
                    "items": False,
                    "minItems": 1,
                },
                "labels": {"type": "object", "properties": {}, "additionalProperties": {"type": "string"}},
                "note": {"type": "string"},
                "odd/key": {"type": "array", "items": {"type": "array", "items": {"type": "string"}}},
                "other": {},
                "both": {
                    "allOf": [
                        {"$ref": "#/$defs/Base"},
                        {"type": "object", "properties": {"extra": {"type": "boolean"}}, "required": ["extra"]},
                    ]
                },
                "patch": {"type": "object", "properties": {"id": {"type": "string"}}},
            },
            "required": ["size", "parts", "pair", "labels", "odd/key", "other", "both", "patch"],
        },
    ]
    assert schema["$defs"] == {
        "Size": {"enum": [1, 2, 10]},
        "Colour": {"enum": ["red", "blue"]},
        "Base": {"type": "object", "properties": {"id": {"type": "string"}}, "required": ["id"]},
    }
    assert "type 'Other' is not declared here" in json.dumps(response.outputs["assumptions"])


def test_inferred_typescript_is_validated_against_samples(adapter: AgentAdapter) -> None:
    source = "type Tree = { name: string; kids: Tree[]; at: [number, number] }"
    good: JsonValue = {"name": "a", "at": [1, 2], "kids": [{"name": "b", "at": [3, 4], "kids": []}]}
    short: JsonValue = {"name": "a", "at": [1], "kids": []}

    first = adapter.invoke("schema-infer", {"data": source, "samples": [good]}, "one")
    second = adapter.invoke("schema-infer", {"data": source, "samples": [short]}, "two")

    assert first.state == "completed", first
    assert "$.at has 1 items, at least 2 belong there" in second.message


@pytest.mark.parametrize(
    ("source", "said"),
    [
        ("interface A { b: keyof C }", "line 1: 'keyof' is computed"),
        ("interface A {\n  b: Pick<C, 'd'>\n}", "line 2: Pick<…> is not known here"),
        ("interface A<T> { b: T }", "type 'A' has parameters"),
        ("interface A { b: string", "'}' is missing"),
        ("type A = `x${string}`", "is no type"),
    ],
)
def test_unsupported_typescript_is_named_with_its_line(adapter: AgentAdapter, source: str, said: str) -> None:
    response = ask(adapter, data=source, source_type="typescript")

    assert response.state == "input_required", response
    assert said in response.message
