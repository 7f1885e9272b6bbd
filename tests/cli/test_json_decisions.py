"""Decisions in JSON: a model without tool calling can work, and an invalid decision is never a result."""

import json
from typing import Any, cast

import pytest
from model_server import ModelServer, Reply, calls, says
from run_workspace import Workspace

type Capture = pytest.CaptureFixture[str]


def decides(*actions: tuple[str, dict[str, object]], **fields: object) -> Reply:
    planned = [{"type": kind, "params": params} for kind, params in actions]
    return says(json.dumps({"reasoning_summary": "Next.", "planned_actions": planned, **fields}))


def ask_in_json(workspace: Workspace, mode: str = "json") -> None:
    settings = json.loads((workspace.folder / "agent.yaml").read_text())
    settings["model"]["structured_output_mode"] = mode
    workspace.configure(**settings)


def told(body: dict[str, Any], role: str) -> str:
    return "\n".join(str(message["content"]) for message in body["messages"] if message["role"] == role)


def find_events(workspace: Workspace, kind: str, run_id: str = "") -> list[dict[str, Any]]:
    found = [event for event in workspace.events(run_id) if event["event_type"] == kind]
    return [cast("dict[str, Any]", event["payload"]) for event in found]


def test_model_without_tool_calling_reads_writes_uses_a_skill_and_finishes(
    workspace: Workspace, model: ModelServer, capsys: Capture
) -> None:
    model.lacking = ("tools", "tool_choice")
    ask_in_json(workspace)
    workspace.write("note.txt", "The meeting is at noon.\n")
    model.follow(
        decides(("call_tool", {"tool": "Read", "arguments": {"path": "note.txt"}})),
        decides(selected_skill="greeter"),
        decides(("call_tool", {"tool": "script_run", "arguments": {"skill_name": "greeter", "script_name": "greet"}})),
        decides(("run_command", {"command": "echo shelled"})),
        decides(("finish", {"result": "Noon, and greeted."})),
    )

    assert workspace.agent("run", "-q", "When is the meeting? Then greet.") == 0

    assert capsys.readouterr().out == "Noon, and greeted.\n"
    assert model.refused == []
    system = told(model.received[0], "system")
    for expected in ("call_tool", "run_command", "call_skill", "ask_user", "finish", '"planned_actions"'):
        assert expected in system
    for tool in ("Read", "Write", "Edit", "Glob", "Grep", "Bash", "script_run"):
        assert f"### {tool}\n" in system
    assert '"required":["path","content"]' in system
    assert "The meeting is at noon." in told(model.received[1], "user")
    assert "# greeter" in told(model.received[2], "user")
    assert "hello from the script" in told(model.received[3], "user")
    assert "shelled" in told(model.received[4], "user")


def test_server_without_schema_support_gets_instructions_as_text(workspace: Workspace, model: ModelServer) -> None:
    model.lacking = ("tools", "response_format")
    ask_in_json(workspace)
    model.follow(decides(("finish", {"result": "Done"})))

    assert workspace.agent("run", "-q", "Greet") == 0
    assert workspace.agent("run", "-q", "Greet") == 0

    assert len(model.refused) == 1


def test_refused_tools_are_replaced_by_json_once_and_remembered_for_the_next_run(
    workspace: Workspace, model: ModelServer, capsys: Capture
) -> None:
    model.lacking = ("tools",)
    workspace.write("note.txt", "The meeting is at noon.\n")
    script = (
        decides(("call_tool", {"tool": "Read", "arguments": {"path": "note.txt"}})),
        decides(("finish", {"result": "Noon."})),
    )

    model.follow(*script)
    assert workspace.agent("run", "-q", "When is the meeting?") == 0
    assert workspace.agent("replay", "latest", "--execute") == 0
    first = find_events(workspace, "structured_output_fallback")
    earlier = set(workspace.run_ids())
    model.follow(*script)
    assert workspace.agent("run", "-q", "When is the meeting?") == 0

    assert [(told["remembered"], told["lacks"], told["model"]) for told in first] == [(False, "tools", "m")]
    (later,) = set(workspace.run_ids()) - earlier
    second = find_events(workspace, "structured_output_fallback", later)
    assert [told["remembered"] for told in second] == [True]
    assert len(model.refused) == 1
    assert len(model.received) == 4
    assert "noon" in told(model.received[1], "user")
    assert workspace.agent("replay", "latest", "--execute") == 0
    assert workspace.agent("prompt", "show", "--run", "latest", "--turn", "1", "--brief") == 0
    assert "matches the request that was sent" in capsys.readouterr().out


def test_doctor_shows_unsupported_features_and_cleared_ones_are_tried_again(
    workspace: Workspace, model: ModelServer, capsys: Capture
) -> None:
    model.lacking = ("tools",)
    model.follow(decides(("finish", {"result": "Done"})))
    assert workspace.agent("run", "-q", "Greet") == 0

    capsys.readouterr()
    assert workspace.agent("doctor") == 0
    shown = capsys.readouterr().out
    assert workspace.agent("doctor", "--clear-unsupported") == 0
    cleared = capsys.readouterr().out
    model.lacking = ()
    model.follow(calls("finish", result="Done"))
    assert workspace.agent("run", "-q", "Greet") == 0

    assert "openai/m without tools until 20" in shown
    assert "agent doctor --clear-unsupported" in shown
    assert "without tools" not in cleared
    assert "tools" in model.received[-1]


def test_native_mode_does_not_fall_back(workspace: Workspace, model: ModelServer, capsys: Capture) -> None:
    model.lacking = ("tools",)
    ask_in_json(workspace, "native")
    model.follow(decides(("finish", {"result": "Done"})))

    assert workspace.agent("run", "Greet") != 0

    assert "structured_output_mode" in capsys.readouterr().err


@pytest.mark.parametrize(
    "broken",
    [
        '{"selected_skill": null, "planned_actions": [{"type": "finish", "params": {"result": "x"}',
        '```json\n{"planned_actions": [{"type": "dance", "params": {}}]}\n```',
        '{"planned_actions": [], "selected_skill": "greeter", "mood": "good"}',
        '{"selected_skill": "no-such-skill", "planned_actions": []}',
        '{"selected_skill": "no-such-skill", "planned_actions": [{"type": "finish", "params": {"result": "x"}}]}',
    ],
)
@pytest.mark.parametrize("mode", ["json", "native_with_json_fallback"])
def test_invalid_decision_is_repaired_once_and_then_fails_with_the_reply_quoted(
    *, mode: str, broken: str, workspace: Workspace, model: ModelServer, capsys: Capture
) -> None:
    ask_in_json(workspace, mode)
    model.follow(says(broken), says(broken), decides(("finish", {"result": "Too late"})))

    assert workspace.agent("run", "Greet") != 0

    assert len(model.received) == 2
    repair = told(model.received[1], "user")
    assert "could not be used" in repair
    assert "planned_actions" in repair
    assert "{'" not in repair
    failed = find_events(workspace, "run_failed")[0]
    assert failed["reason"] == "decision_invalid"
    assert broken.removeprefix("```json\n")[:20] in failed["message"]
    assert "Too late" not in capsys.readouterr().out


def test_repaired_decision_continues(workspace: Workspace, model: ModelServer, capsys: Capture) -> None:
    ask_in_json(workspace)
    model.follow(
        decides(selected_skill="greetr"),
        decides(selected_skill="greeter"),
        decides(("finish", {"result": "Greeted."})),
    )

    assert workspace.agent("run", "-q", "Greet") == 0

    assert capsys.readouterr().out == "Greeted.\n"
    assert "'greeter'" in told(model.received[1], "user")


def test_json_answer_that_is_not_a_decision_is_the_result(
    workspace: Workspace, model: ModelServer, capsys: Capture
) -> None:
    model.follow(says('{"name": "Ada", "selected": true}'))

    assert workspace.agent("run", "-q", "Give me JSON") == 0

    assert capsys.readouterr().out == '{"name": "Ada", "selected": true}\n'


def test_resumed_run_in_json_fallback_replays_equal(workspace: Workspace, model: ModelServer, capsys: Capture) -> None:
    model.lacking = ("tools", "tool_choice")
    model.follow(
        decides(("ask_user", {"question": "Which color?"})),
        decides(("call_tool", {"tool": "Glob", "arguments": {"pattern": "*.txt"}})),
        decides(("finish", {"result": "Blue it is."})),
    )
    assert workspace.agent("run", "-q", "Choose a color") == 4
    run_id = workspace.run_ids()[-1]
    assert workspace.agent("resume", run_id, "--input", "answer=blue", "--quiet") == 0
    assert [set(body) & {"tools"} for body in (*model.refused, *model.received)] == [{"tools"}, set(), set(), set()]
    capsys.readouterr()

    assert workspace.agent("replay", run_id, "--execute") == 0, capsys.readouterr()
