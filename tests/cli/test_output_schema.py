"""`agent run --output-schema`: stdout is exactly the requested JSON, or the run fails with a reason."""

import json
from typing import Any

import pytest
from model_server import ModelServer, calls, says
from run_workspace import Workspace

type Capture = pytest.CaptureFixture[str]

SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {"city": {"type": "string"}, "days": {"type": "integer", "minimum": 1}},
    "required": ["city", "days"],
    "additionalProperties": False,
}
GOOD = {"city": "Bern", "days": 3}


def run(workspace: Workspace, *words: str, schema: object = SCHEMA) -> int:
    return workspace.agent("run", "-q", "--output-schema", json.dumps(schema), *words, "Plan a trip")


@pytest.mark.parametrize(
    "reply",
    [
        says(json.dumps(GOOD)),
        says(f"```json\n{json.dumps(GOOD)}\n```"),
        calls("finish", result=GOOD),
        calls("finish", result=json.dumps(GOOD)),
    ],
    ids=["text", "fenced", "finish with an object", "finish with text"],
)
def test_stdout_is_exactly_the_json(workspace: Workspace, model: ModelServer, capsys: Capture, reply: Any) -> None:
    model.follow(reply)

    assert run(workspace) == 0

    out = capsys.readouterr().out
    assert json.loads(out) == GOOD
    assert out == out.strip() + "\n"
    assert json.dumps(SCHEMA) in str(model.received[0]["messages"])


def test_invalid_result_gets_one_repair_turn_with_the_schema(
    workspace: Workspace, model: ModelServer, capsys: Capture
) -> None:
    model.follow(says('{"city": 3}'), says(json.dumps(GOOD)))

    assert run(workspace) == 0

    assert json.loads(capsys.readouterr().out) == GOOD
    first, second = model.received
    assert "response_format" not in first
    assert second["response_format"]["json_schema"]["schema"] == SCHEMA
    told = str(second["messages"])
    assert "'days' is a required property" in told
    assert "3 is not of type 'string'" in told


def test_result_that_stays_invalid_fails_with_every_error_and_empty_stdout(
    workspace: Workspace, model: ModelServer
) -> None:
    model.follow(says("Three days in Bern"), says('{"city": 3, "days": 0}'))

    agent = workspace.start("run", "-q", "--output-schema", json.dumps(SCHEMA), "Plan a trip")
    out, err = agent.communicate(timeout=60)

    assert agent.returncode == 1
    assert out == ""
    assert "3 is not of type 'string' (at $.city)" in err
    assert "0 is less than the minimum of 1 (at $.days)" in err
    assert len(model.received) == 2


def test_server_without_schema_support_gets_a_request_without_it(
    workspace: Workspace, model: ModelServer, capsys: Capture
) -> None:
    model.lacking = ("response_format",)
    model.follow(says("no JSON"), says(json.dumps(GOOD)))

    assert run(workspace) == 0

    assert json.loads(capsys.readouterr().out) == GOOD
    assert [("response_format" in body) for body in model.refused] == [True]


def test_plain_text_becomes_a_json_string_if_the_schema_is_a_string(
    workspace: Workspace, model: ModelServer, capsys: Capture
) -> None:
    model.follow(says("Bern, of course"))

    assert run(workspace, schema={"type": "string"}) == 0

    assert json.loads(capsys.readouterr().out) == "Bern, of course"


def test_schema_is_recorded_and_applied_by_resume_and_replay(
    workspace: Workspace, model: ModelServer, capsys: Capture
) -> None:
    file = workspace.write("trip.schema.json", json.dumps(SCHEMA))
    model.follow(calls("ask_user", question="Where to?"), says("Bern"), says(json.dumps(GOOD)))
    assert workspace.agent("run", "-q", "--output-schema", str(file), "Plan a trip") == 4
    file.unlink()
    capsys.readouterr()

    assert workspace.agent("resume", "latest", "-q", "--input", "answer=Bern") == 0

    assert json.loads(capsys.readouterr().out) == GOOD
    assert workspace.agent("replay", "latest", "--execute") == 0


@pytest.mark.parametrize(
    ("given", "says_why"),
    [
        ("none.json", "cannot be read"),
        ("{", "is not JSON"),
        ('{"type": "objekt"}', "is not a JSON schema"),
        ('{"pattern": "^(?=a)b"}', "the pattern '^(?=a)b' cannot be used: invalid perl operator: (?="),
    ],
)
def test_invalid_schema_is_rejected_before_the_first_request(
    workspace: Workspace, model: ModelServer, capsys: Capture, given: str, says_why: str
) -> None:
    assert workspace.agent("run", "-q", "--output-schema", given, "Plan a trip") == 2

    assert says_why in capsys.readouterr().err
    assert model.received == []


def test_pattern_that_would_backtrack_forever_is_matched_in_linear_time(
    workspace: Workspace, model: ModelServer, capsys: Capture
) -> None:
    text = "a" * 60 + "!"
    model.follow(says(json.dumps(text)), says(json.dumps(text)))

    assert run(workspace, schema={"pattern": "^(a+)+$"}) == 1

    assert "does not match '^(a+)+$'" in capsys.readouterr().err


def test_other_failures_are_reported_with_empty_stdout(workspace: Workspace, capsys: Capture) -> None:
    assert run(workspace, "--provider", "offline") == 1

    said = capsys.readouterr()
    assert said.out == ""
    assert "Nothing was done" in said.err


def test_json_output_has_the_value_and_the_text(workspace: Workspace, model: ModelServer, capsys: Capture) -> None:
    model.follow(says(json.dumps(GOOD)))

    assert run(workspace, "--output-format", "json") == 0

    assert json.loads(json.loads(capsys.readouterr().out)["result"]) == GOOD
