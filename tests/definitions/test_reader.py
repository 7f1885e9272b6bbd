"""The file reader reports every problem of a file together, each with its line."""

from metier.definitions.reader import Context, Exact, FileModel, Items, Text, Texts, read_model
from metier.definitions.text.json_text import read_json
from metier.definitions.text.yaml_text import Node, plain_value, read_yaml


class Step(FileModel):
    command: Exact = ""
    names: Texts = ()


class Plan(FileModel):
    title: Text
    steps: Items[Step] = ()


def parse(text: str) -> Node:
    root = read_yaml(text).root
    assert root is not None
    return root


def test_all_problems_are_reported_in_the_order_of_their_lines() -> None:
    text = "steps:\n  - comand: x\n  - just text\n  - command: [a]\n"

    reading = read_model(Plan, parse(text), file="plan.yaml")

    assert reading.value is None
    assert [problem.render() for problem in reading.problems] == [
        "plan.yaml:1: error: Field 'title' is missing [missing_title]",
        "plan.yaml:2: error: Unknown key 'comand' [unknown_key] (Did you mean 'command'?)",
        "plan.yaml:3: error: An item of 'steps' must be a mapping [not_a_mapping]",
        "plan.yaml:4: error: Field 'command' must be text [not_text] (Write it as one value)",
    ]


def test_values_become_the_types_of_the_model() -> None:
    reading = read_model(Plan, parse("title: '  a '\nsteps:\n  - {command: ' x ', names: 'b, c'}\n"), file="")

    assert reading.value == Plan(title="a", steps=(Step(command=" x ", names=("b", "c")),))
    assert reading.problems == ()


def test_deviation_is_an_error_in_strict_mode_and_a_warning_otherwise() -> None:
    text = "title: [a, b]\n"

    strict = read_model(Plan, parse(text), file="")
    lenient = read_model(Plan, parse(text), file="", context=Context(strict=False))

    assert (strict.value, [problem.severity for problem in strict.problems]) == (None, ["error"])
    assert lenient.value == Plan(title="a, b")
    assert [problem.severity for problem in lenient.problems] == ["warning"]


def test_unknown_keys_can_be_ignored() -> None:
    reading = read_model(Plan, parse("title: a\nother: b\n"), file="", context=Context(unknown_keys="ignore"))

    assert (reading.value, reading.problems) == (Plan(title="a"), ())


def test_problems_in_json_have_the_lines_of_their_keys() -> None:
    root = read_json('{\n  "title": "a",\n  "steps": [\n    {"names": {"x":\n 1}}\n  ]\n}').root
    assert root is not None

    assert [problem.line for problem in read_model(Plan, root, file="").problems] == [4]


def test_json_nodes_preserve_values_as_written() -> None:
    root = read_json('{"a": [1, -2.5e3, true, null, "x\\ud83d\\ude00\\n", "null"], "b": {}, "c": []}').root
    assert root is not None

    assert plain_value(root) == {"a": ["1", "-2.5e3", "true", None, "x\U0001f600\n", "null"], "b": {}, "c": []}


def test_duplicate_json_key_is_reported_and_its_last_value_used() -> None:
    document = read_json('{"a": "1",\n"a": "2"}', file="x.json")

    assert document.root is not None
    assert plain_value(document.root) == {"a": "2"}
    assert [problem.render() for problem in document.problems] == [
        "x.json:2: error: Key 'a' is repeated; it is first in line 1 [duplicate_key] (Keep one of them)"
    ]
