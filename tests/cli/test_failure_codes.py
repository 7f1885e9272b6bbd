"""Failures of scripts, skill tools and server tools: the model gets an error code even if nothing ran."""

import json
from typing import Any

from mcp_workspace import accept, use_hostile
from model_server import ModelServer, Reply, calls, says
from run_workspace import BREAK, Workspace

DENY = "tool_approvals:\n  rules:\n    - {tool: script_run, verdict: deny, reason: not today}\n"


def read_failures(model: ModelServer) -> list[dict[str, Any]]:
    """Return every failure in the last request in call order, in any wording."""
    found: list[dict[str, Any]] = []
    for message in model.received[-1]["messages"]:
        text = str(message["content"])
        while message["role"] != "assistant" and '{"success": false' in text:
            text = text[text.index('{"success": false') :]
            value, end = json.JSONDecoder().raw_decode(text)
            found.append(value)
            text = text[end:]
    return found


def run_script(script: str, **more: object) -> Reply:
    return calls("script_run", skill_name="greeter", script_name=script, **more)


def test_a_call_that_was_not_run_has_an_error_code_like_a_failed_one(workspace: Workspace, model: ModelServer) -> None:
    workspace.add_skill("breaker", "Break things.", snap=BREAK)
    model.follow(
        calls("script_run", skill_name="greeter"),
        run_script("absent"),
        calls("script_run", skill_name="../x", script_name="greet"),
        calls("script_run", skill_name="breaker", script_name="snap"),
        says("Done."),
    )

    assert workspace.agent("run", "Greet") == 0

    failures = read_failures(model)
    assert [each["error"] for each in failures] == [
        "invalid_arguments",
        "not_found",
        "invalid_name",
        "execution_failed",
    ]
    assert "'script_name' is a required property" in failures[0]["message"]
    refused = [event["payload"] for event in workspace.events() if event["event_type"] == "call_refused"]
    assert [each["reason"][:1] for each in refused] == ["I"]


def test_a_denied_script_is_permission_denied(workspace: Workspace, model: ModelServer) -> None:
    workspace.write(".agent/policy.yaml", DENY)
    model.follow(run_script("greet"), says("Done."))

    assert workspace.agent("run", "Greet") == 0

    (failure,) = read_failures(model)
    assert failure["error"] == "permission_denied"
    assert "not today" in failure["message"]
    (refused,) = [event["payload"] for event in workspace.events() if event["event_type"] == "call_refused"]
    assert "not today" in refused["reason"]
    assert "success" not in refused["reason"]


def test_a_model_in_json_mode_gets_the_same_error_codes(workspace: Workspace, model: ModelServer) -> None:
    settings = json.loads((workspace.folder / "agent.yaml").read_text())
    workspace.configure(**{**settings, "model": {**settings["model"], "structured_output_mode": "json"}})
    for arguments in ({"skill_name": "greeter"}, {"skill_name": "greeter", "script_name": "absent"}):
        model.received.clear()
        call = {"type": "call_tool", "params": {"tool": "script_run", "arguments": arguments}}
        finish = {"type": "finish", "params": {"result": "Done."}}
        model.follow(*(says(json.dumps({"planned_actions": [action]})) for action in (call, finish)))

        assert workspace.agent("run", "Greet") == 0

        (failure,) = read_failures(model)
        assert failure["error"] in ("invalid_arguments", "not_found")


def test_a_failing_server_tool_has_an_error_code(workspace: Workspace, model: ModelServer) -> None:
    accept(workspace, hostile=use_hostile())
    model.follow(calls("hostile___wrong"), says("Done."))

    assert workspace.agent("run", "Try it") == 0

    (failure,) = read_failures(model)
    assert failure["success"] is False
    assert failure["error"] == "execution_failed"
    assert failure["message"]
