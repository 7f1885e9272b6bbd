"""The position in every event: turn, skill in charge, and the skill that a step runs."""

import hashlib
import json

import pytest
from agent_files import add_agent
from model_server import ModelServer, calls, says
from run_workspace import GREET, Workspace
from test_json_decisions import ask_in_json, decides, find_events

type Capture = pytest.CaptureFixture[str]

ALLOWED = ("tool_approvals:", "  rules:", "    - {tool: delegate, allow: true}", "    - {tool: Glob, allow: true}")


def lines_of(err: str, action: str) -> list[list[str]]:
    """Return the words of the console lines of one event type: time, trace, `turn`, number, skill, …"""
    return [line.split() for line in err.splitlines() if f" {action} " in line]


def test_events_of_a_resumed_run_have_a_turn_from_the_first_one_on(
    workspace: Workspace, model: ModelServer, capsys: Capture
) -> None:
    model.follow(calls("Glob", pattern="*.md"), calls("ask_user", question="Which colour?"), says("Done."))
    assert workspace.agent("run", "Ask") == 4
    capsys.readouterr()

    assert workspace.agent("resume", "latest", "--input", "answer=blue", "--events") == 0

    err = capsys.readouterr().err
    assert "turn  0" not in err
    (resumed,) = [event for event in workspace.events() if event["event_type"] == "run_resumed"]
    assert resumed["turn"] == 2
    assert lines_of(err, "run_resumed")[0][3] == "2"
    assert lines_of(err, "run_finished")[0][3] == "3"


def test_lines_of_a_run_show_its_own_turn_while_a_child_runs(
    workspace: Workspace, model: ModelServer, capsys: Capture
) -> None:
    add_agent(workspace.folder, "checker", "description: Checks facts.", *ALLOWED)
    add_agent(workspace.folder, "lead", *ALLOWED)
    model.follow(
        calls("delegate", agent="checker", task="Check it"),
        *[calls("Glob", pattern=f"{number}*.md") for number in range(3)], says("Checked."),
        says("All done."),
    )  # fmt: skip

    assert workspace.agent("run", "Have it checked", "--agent", "lead", "--profile", "permissive", "--events") == 0

    err = capsys.readouterr().err
    assert [words[3] for words in lines_of(err, "child_run_finished")] == ["1"]
    assert [words[3] for words in lines_of(err, "run_finished")] == ["4", "2"]


def test_a_step_names_the_skill_whose_script_it_runs(workspace: Workspace, model: ModelServer, capsys: Capture) -> None:
    workspace.add_skill("other", "Does something else.", other=GREET)
    model.follow(
        calls("use_skill", skill="greeter", reason="It greets"),
        calls("script_run", skill_name="other", script_name="other"),
        calls("Glob", pattern="*.md"),
        says("Done."),
    )

    assert workspace.agent("run", "Greet somebody kindly", "--profile", "permissive", "--events") == 0

    started = {each["tool"]: each["skill_name"] for each in find_events(workspace, "step_started")}
    assert (started["script_run"], started["Glob"]) == ("other", "greeter")
    shown = {words[-1]: words[4] for words in lines_of(capsys.readouterr().err, "step_started")}
    assert (shown["script_run"], shown["Glob"]) == ("other", "greeter")
    in_charge = [event["skill"] for event in workspace.events() if event["event_type"] == "llm_decision_decoded"]
    assert in_charge == ["", "greeter", "greeter", "greeter"]


def test_a_skill_named_in_a_json_decision_is_reported_once(workspace: Workspace, model: ModelServer) -> None:
    ask_in_json(workspace)
    act: tuple[str, dict[str, object]] = ("call_tool", {"tool": "Glob", "arguments": {"pattern": "*.md"}})
    model.follow(
        decides(act, selected_skill="greeter"),
        decides(act, selected_skill="greeter"),
        decides(("finish", {"result": "Done."}), selected_skill="greeter"),
    )

    assert workspace.agent("run", "Greet somebody kindly") == 0

    (started,) = find_events(workspace, "skill_invocation_started")
    definition = (workspace.folder / "skills/greeter/SKILL.md").read_bytes()
    assert started["skill_name"] == "greeter"
    assert started["digest"] == hashlib.sha256(definition).hexdigest()
    assert len(find_events(workspace, "skill_invocation_finished")) == 1


def test_the_expected_output_of_an_action_is_requested_and_logged(workspace: Workspace, model: ModelServer) -> None:
    ask_in_json(workspace)
    plan = {
        "reasoning_summary": "Look.",
        "planned_actions": [
            {
                "type": "call_tool",
                "params": {"tool": "Glob", "arguments": {"pattern": "*.md"}},
                "expected_output": "The names of the notes",
            }
        ],
    }
    model.follow(says(json.dumps(plan)), decides(("finish", {"result": "Done."})))

    assert workspace.agent("run", "Look") == 0

    assert "expected_output" in json.dumps(model.received[0])
    (first, _) = find_events(workspace, "llm_decision_decoded")
    assert first["planned_actions"][0]["expected_output"] == "The names of the notes"


def test_native_calls_are_logged_with_their_id_and_expected_output(workspace: Workspace, model: ModelServer) -> None:
    model.follow(calls("Glob", pattern="*.md"), calls("finish", result="Done."))

    assert workspace.agent("run", "Look") == 0

    (glob,), (finish,) = (event["planned_actions"] for event in find_events(workspace, "llm_decision_decoded"))
    sent = [message["tool_calls"] for message in model.received[1]["messages"] if message.get("tool_calls")]
    assert glob["call_id"] == sent[0][0]["id"]
    assert glob["expected_output"] == "The result of Glob"
    assert finish["call_id"]
    assert finish["expected_output"] == "The result of finish"


def test_the_catalog_is_disclosure_stage_0(workspace: Workspace, model: ModelServer) -> None:
    model.follow(calls("use_skill", skill="greeter", reason="It greets"), says("Done."))

    assert workspace.agent("run", "Greet somebody kindly") == 0

    stages = find_events(workspace, "skill_disclosure_loaded")
    assert [each["stage"] for each in stages] == [0, 1, 3]
    (file, *_) = stages[0]["files"]
    assert (file["path"], file["section"]) == ("greeter/SKILL.md", "description")
    assert stages[0]["total_bytes"] >= file["bytes"] > 0
    assert "Greet somebody kindly with a script." in json.dumps(model.received[0])
