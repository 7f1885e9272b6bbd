"""Published `evals.json` files: every assertion becomes a check, a sentence or a problem with a line."""

import json
from pathlib import Path
from typing import Any

import pytest

from metier.evals.eval_files import EvalsReading, parse_evals, parse_yaml_set, read_evals


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
def test_assertions_of_other_tools_become_checks_or_sentences(assertion: Any, kind: str, text: str) -> None:
    reading = read([assertion])

    (check,) = reading.cases[0].checks
    assert check.check == kind
    assert text in check.model_dump_json().replace('\\"', '"')
    assert reading.problems == []


@pytest.mark.parametrize(
    ("assertion", "problem"),
    [
        (3, ("evals_assertion", "An assertion must be a sentence or an object", 9)),
        ({}, ("evals_assertion", "An assertion has neither 'text' nor 'check'", 9)),
        ({"check": "contians"}, ("evals_assertion", "Unknown check 'contians'", 9)),
        ({"check": "contains"}, ("missing_text", "Field 'text' is missing", 9)),
        ({"check": "contains", "text": "x", "txt": "red"}, ("unknown_key", "Unknown key 'txt'", 12)),
        ({"check": "max_turns", "value": "many"}, ("bad_value", "Field 'value' must be a whole number", 11)),
        (
            {"check": "matches", "pattern": "(?=x)"},
            ("bad_value", "Field 'pattern' cannot be used: invalid perl operator: (?=", 11),
        ),
        (
            {"check": "json_path", "path": "$..x"},
            ("bad_value", "Field 'path' cannot be used: '..x' is neither a name nor an index", 11),
        ),
        ({"check": "file_equals", "path": "x"}, ("bad_value", "it needs either 'text' or 'same_as'", 9)),
    ],
)
def test_unusable_assertion_is_a_problem_with_its_line(assertion: Any, problem: tuple[str, str, int]) -> None:
    reading = read(["First", assertion])

    (found,) = reading.problems
    assert found.file == "evals/evals.json"
    assert (found.code, found.message, found.line) == problem


def test_several_words_next_to_an_unknown_check_are_a_sentence() -> None:
    reading = read([{"check": "contians", "text": "x"}])

    assert [check.check for check in reading.cases[0].checks] == ["sentence"]


def test_all_problems_in_a_case_are_reported_with_their_lines() -> None:
    reading = read(
        [{"check": "contains", "txt": "x"}],
        shape="round",
        budget={"max_turn": 3, "max_cost_usd": 0},
        setup={"git": "push"},
    )

    assert [problem.render() for problem in sorted(reading.problems, key=lambda each: each.line or 0)] == [
        "evals/evals.json:8: error: Field 'text' is missing [missing_text]",
        "evals/evals.json:10: error: Unknown key 'txt' [unknown_key] (Did you mean 'text'?)",
        "evals/evals.json:13: warning: Unknown key 'shape' [unknown_key]",
        "evals/evals.json:15: error: Unknown key 'max_turn' [unknown_key] (Did you mean 'max_turns'?)",
        "evals/evals.json:16: error: Field 'max_cost_usd' must be more than 0 [bad_value]",
        "evals/evals.json:19: error: Field 'git' must be '', 'init' or 'commit', not 'push' [bad_value]",
    ]


def test_duplicate_key_in_a_json_file_is_a_warning() -> None:
    reading = parse_evals('[{"prompt": "x",\n"prompt": "y", "expected": "z"}]', file="e.json")

    assert [case.prompt for case in reading.cases] == ["y"]
    assert [(problem.severity, problem.code, problem.line) for problem in reading.problems] == [
        ("warning", "duplicate_key", 2)
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
def test_a_file_without_an_eval_target_is_a_problem(text: str) -> None:
    parsed = parse_yaml_set(text, file="x.yaml")

    assert parsed.eval_set is None
    assert [problem.code for problem in parsed.problems] == ["evals_target"]
