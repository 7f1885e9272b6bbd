"""`evals.json` as it is found: every assertion becomes a check, a sentence or a problem with file and line."""

import json
from pathlib import Path
from typing import Any

import pytest

from metier.evals.format.eval_files import EvalsReading, get_lines, parse_evals, read_evals
from metier.evals.format.yaml_sets import parse_yaml_set


def read(assertions: list[Any], **more: Any) -> EvalsReading:
    text = json.dumps(
        {"skill_name": "s", "evals": [{"id": 1, "prompt": "Do it", "assertions": assertions, **more}]}, indent=1
    )
    return parse_evals(text, file="evals/evals.json")


@pytest.mark.parametrize(
    ("assertion", "kind", "text"),
    [
        ("It names the file", "sentence", "It names the file"),
        ({"type": "semantic", "text": "It is polite"}, "sentence", "It is polite"),
        ({"check": "The output has a table", "name": "table"}, "sentence", "The output has a table"),
        ({"name": "table", "description": "There is a table"}, "sentence", "There is a table"),
        ({"id": "a-1", "text": "It follows the template"}, "sentence", "It follows the template"),
        ({"type": "contains", "text": "The output contains a table"}, "sentence", "The output contains a table"),
        ({"pattern": "a+b", "type": "regex", "description": "Has ab"}, "matches", "a+b"),
        ({"pattern": "a+b"}, "matches", "a+b"),
        ({"type": "not_contains", "value": "sorry"}, "contains", "sorry"),
        ({"type": "file_exists", "path": "out.md"}, "file_exists", "out.md"),
        ({"type": "tool_called", "tool": "Read"}, "tool_called", "Read"),
        ({"check": "contains", "text": "two"}, "contains", "two"),
        ({"check": "max_cost", "usd": 0.5}, "max_cost", "0.5"),
    ],
)
def test_what_other_tools_write_becomes_a_check_or_a_sentence(assertion: Any, kind: str, text: str) -> None:
    reading = read([assertion])

    (check,) = reading.cases[0].checks
    assert check.check == kind
    assert text in check.model_dump_json().replace('\\"', '"')
    assert reading.problems == []


@pytest.mark.parametrize(
    ("assertion", "words"),
    [
        (3, "neither a sentence nor an object"),
        ({}, "does not say what is expected"),
        ({"check": "contians", "text": "x"}, None),
        ({"check": "contians"}, "There is no check 'contians'"),
        ({"check": "contains"}, "text: Field required"),
        ({"check": "contains", "text": "x", "colour": "red"}, "colour"),
        ({"check": "matches", "pattern": "(?=x)"}, "cannot be used"),
        ({"check": "json_path", "path": "$..x"}, "cannot be used"),
        ({"check": "file_equals", "path": "x"}, "'text' or 'same_as'"),
    ],
)
def test_what_cannot_be_checked_is_a_problem_with_file_and_line(assertion: Any, words: str | None) -> None:
    reading = read(["First", assertion])

    if words is None:  # several words beside an unknown name are a sentence
        assert [check.check for check in reading.cases[0].checks] == ["sentence", "sentence"]
        return
    (problem,) = reading.problems
    assert (problem.code, problem.file, problem.line) == ("evals_assertion", "evals/evals.json", 9)
    assert words in problem.message


def test_a_field_that_nothing_reads_is_named_and_not_dropped() -> None:
    reading = read(["x"], shape="round")

    assert [(problem.code, problem.severity, problem.line) for problem in reading.problems] == [
        ("evals_unknown", "warning", 10)
    ]


def test_an_expected_output_alone_is_a_sentence_for_a_judge() -> None:
    reading = parse_evals('[{"prompt": "x", "expected_output": "A poem"}]', file="e.json")

    assert [check.check for check in reading.cases[0].checks] == ["sentence"]


def test_triggers_are_read_in_all_their_forms(tmp_path: Path) -> None:
    (tmp_path / "evals").mkdir()
    forms = [
        '[{"query": "a", "should_trigger": true}, {"query": "b", "should_trigger": false}]',
        '{"skill_name": "s", "queries": [{"query": "c", "should_trigger": true}]}',
        '{"should_trigger": ["d", {"query": "e"}], "should_not_trigger": ["f"]}',
    ]
    for number, text in enumerate(forms):
        (tmp_path / "evals" / f"trigger-{number}.json").write_text(text)

    reading = read_evals(tmp_path, skill_name="s")

    assert [(trigger.query, trigger.should_trigger) for trigger in reading.triggers] == [
        ("a", True), ("b", False), ("c", True), ("d", True), ("e", True), ("f", False),
    ]  # fmt: skip
    assert reading.cases == []


def test_cases_of_a_workspace_have_inputs_setup_policy_and_budget() -> None:
    text = """agent: reviewer
cases:
  - id: small
    prompt: Review it
    inputs: {since: "1"}
    setup:
      files: {src/a.py: "x = 1"}
      git: commit
    policy: {tool_approvals: {rules: [{tool: Write, allow: false}]}}
    budget: {max_turns: 3, max_cost_usd: 0.5}
    checks:
      - {check: tool_not_called, tool: Write}
      - {check: nonsense}
"""
    parsed = parse_yaml_set(text, file=".agent/evals/review.yaml")

    assert parsed.eval_set is not None
    (case,) = parsed.eval_set.cases
    assert (parsed.eval_set.kind, parsed.eval_set.target) == ("agent", "reviewer")
    assert (case.inputs, case.setup.git, case.budget.max_turns) == ({"since": "1"}, "commit", 3)
    assert json.loads(case.policy) == {"tool_approvals": {"rules": [{"tool": "Write", "allow": False}]}}
    assert [(problem.code, problem.line) for problem in parsed.problems] == [("evals_assertion", 13)]


@pytest.mark.parametrize("text", ["cases: []", "agnt: x\ncases: []", "agent: a\nskill: b\ncases: []", "- x"])
def test_a_file_that_does_not_say_what_is_evaluated_is_a_problem(text: str) -> None:
    parsed = parse_yaml_set(text, file="x.yaml")

    assert parsed.eval_set is None
    assert [problem.code for problem in parsed.problems] == ["evals_target"]


def test_lines_are_those_of_the_values() -> None:
    text = '{\n "a": [\n  1,\n  {"b": "}\\"{,"},\n  []\n ],\n "c": null\n}'

    lines = get_lines(text)

    assert (lines["a", 0], lines["a", 1, "b"], lines["a", 2], lines["c",]) == (3, 4, 5, 7)
