"""Each check passing and failing. Sentences do not pass without a judge."""

import json
from typing import Any

import pytest

from metier.definitions.text.json_text import read_json
from metier.evals.cases import CHECK_TYPES, AnyCheck, Sentence
from metier.evals.eval_files import read_assertion
from metier.evals.eval_results import judge_grades
from metier.evals.evidence import Call, Evidence, as_content
from metier.evals.grading import Grade, grade

EVIDENCE = Evidence(
    run_id="r",
    result='Done: {"totals": {"files": 2, "names": ["a.py", "b.md"]}}',
    status="completed",
    exit_code=0,
    calls=(
        Call(tool="Read", arguments={"path": "a.py"}, status="succeeded"),
        Call(tool="Bash", arguments={"command": "make test"}, status="succeeded", exit_code=3),
        Call(tool="Write", arguments={"path": "out/x.md", "content": "x"}, status="denied", is_denied=True, text="no"),
    ),
    skills=("Note-Taker",),
    turns=3,
    input_tokens=100,
    output_tokens=20,
    cost_usd=0.25,
    files={"out/x.md": as_content(b"# X\nyes\n"), "in.txt": as_content(b"in")},
    denials=("Write: no",),
)


def judge(check: dict[str, Any]) -> Grade:
    return grade(parse(check), EVIDENCE)


def parse(check: dict[str, Any]) -> AnyCheck:
    root = read_json(json.dumps(check)).root
    assert root is not None
    read = read_assertion(root, file="")
    assert not isinstance(read, tuple), read
    return read


HOLDS: list[dict[str, Any]] = [
    {"check": "contains", "text": "Done"},
    {"check": "contains", "text": "dONE", "ignore_case": True},
    {"check": "contains", "text": "missing", "negate": True},
    {"check": "contains", "text": "yes", "file": "out/x.md"},
    {"check": "equals", "text": EVIDENCE.result},
    {"check": "matches", "pattern": r"\bDone: \{"},
    {"check": "matches", "pattern": "^# X$|(?m)^yes$", "file": "out/x.md"},
    {"check": "json_schema", "schema": {"type": "object", "required": ["totals"]}},
    {"check": "json_path", "path": "$.totals.files", "equals": 2},
    {"check": "json_path", "path": "$.totals.names[*]", "equals": "b.md"},
    {"check": "json_path", "path": "totals.names[0]", "matches": r"\.py$"},
    {"check": "json_path", "path": "$.totals.files", "at_least": 1, "at_most": 2},
    {"check": "file_exists", "path": "out/*.md"},
    {"check": "file_exists", "path": "gone", "negate": True},
    {"check": "file_equals", "path": "out/x.md", "text": "# X\nyes\n"},
    {"check": "file_matches", "path": "out/x.md", "pattern": "ye."},
    {"check": "exit_code"},
    {"check": "exit_code", "tool": "Bash", "equals": 3},
    {"check": "tool_called", "tool": "Read", "arguments": {"path": "a.py"}},
    {"check": "tool_called", "tool": "Bash", "arguments": {"command": {"startsWith": "make"}}},
    {"check": "tool_not_called", "tool": "WebFetch"},
    {"check": "tool_not_called", "tool": "Read", "arguments": {"path": "b.py"}},
    {"check": "tool_order", "tools": ["Read", "Write"]},
    {"check": "skill_used", "skill": "note_taker"},
    {"check": "max_turns", "value": 3},
    {"check": "max_cost", "usd": 0.25},
    {"check": "max_tokens", "value": 120},
]
FAILS: list[dict[str, Any]] = [
    {"check": "contains", "text": "missing"},
    {"check": "contains", "text": "x", "file": "gone.md"},
    {"check": "equals", "text": "Done"},
    {"check": "matches", "pattern": "^done$"},
    {"check": "json_schema", "schema": {"type": "object", "required": ["nothing"]}},
    {"check": "json_path", "path": "$.totals.folders"},
    {"check": "json_path", "path": "$.totals.files", "equals": "2"},
    {"check": "json_path", "path": "$.totals.files", "at_most": 1},
    {"check": "file_exists", "path": "gone"},
    {"check": "file_equals", "path": "out/x.md", "text": "# X\nno\n"},
    {"check": "file_matches", "path": "gone", "pattern": "x"},
    {"check": "exit_code", "equals": 1},
    {"check": "exit_code", "tool": "Grep"},
    {"check": "tool_called", "tool": "Read", "arguments": {"path": {"startsWith": "src"}}},
    {"check": "tool_called", "tool": "Read", "at_least": 2},
    {"check": "tool_not_called", "tool": "Bash"},
    {"check": "tool_order", "tools": ["Write", "Read"]},
    {"check": "skill_used", "skill": "other"},
    {"check": "max_turns", "value": 2},
    {"check": "max_cost", "usd": 0.2},
    {"check": "max_tokens", "value": 119},
    {"check": "no_policy_denial"},
]


@pytest.mark.parametrize("check", HOLDS, ids=str)
def test_check_passes(check: dict[str, Any]) -> None:
    assert judge(check).verdict == "passed", judge(check)


@pytest.mark.parametrize("check", FAILS, ids=str)
def test_check_fails_and_reports_what_was_found(check: dict[str, Any]) -> None:
    found = judge(check)

    assert (found.verdict, bool(found.evidence)) == ("failed", True)
    assert found.text.startswith(check["check"])


def test_every_code_check_is_tested_both_ways() -> None:
    tried = {check["check"] for check in HOLDS} & {check["check"] for check in FAILS}

    assert set(CHECK_TYPES) - tried == {"no_policy_denial", "python", "sentence"}


def test_a_sentence_without_a_judge_is_unchecked_and_does_not_pass() -> None:
    found = grade(Sentence(text="It is polite"), EVIDENCE)

    assert found.verdict == "not_checked"
    assert judge_grades([found]) == "not_checked"
    assert judge_grades([found, judge(HOLDS[0])]) == "passed"
    assert judge_grades([found, judge(HOLDS[0]), judge(FAILS[0])]) == "failed"
