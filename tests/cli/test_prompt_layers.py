"""The content of requests besides the task: instructions, tools, environment, inputs, plan."""

import json
import platform
from datetime import UTC, datetime
from typing import Any

import pytest
from model_server import ModelServer, calls, says
from run_workspace import Workspace

type Capture = pytest.CaptureFixture[str]

TASK = """---
name: Report
inputs:
  - name: city
    description: Where
  - name: days
    default: "3"
---
Report on {{inputs.city}}.
"""


def system_of(body: dict[str, Any]) -> str:
    return "\n".join(str(message["content"]) for message in body["messages"] if message["role"] == "system")


def first_user(body: dict[str, Any]) -> str:
    return str(next(message["content"] for message in body["messages"] if message["role"] == "user"))


def test_workspace_prompt_follows_the_operating_instructions_and_does_not_replace_them(
    workspace: Workspace, model: ModelServer
) -> None:
    workspace.write("context/system_prompt.md", "You keep the notes of a small team.")
    model.follow(says("Done"))

    assert workspace.agent("run", "-q", "Greet") == 0

    system = system_of(model.received[0])
    own = system.index("You keep the notes of a small team.")
    for point in ("agent in Metier", "If instructions conflict", "If unsure", "`use_skill`", "`finish`"):
        assert 0 <= system.find(point) < own, point


def test_initialized_workspace_keeps_the_operating_instructions(workspace: Workspace, model: ModelServer) -> None:
    model.follow(says("Done"))
    settings = (workspace.folder / "agent.yaml").read_text()
    (workspace.folder / "agent.yaml").unlink()
    assert workspace.agent("init") == 0
    (workspace.folder / "agent.yaml").write_text(settings)

    assert workspace.agent("run", "-q", "Greet") == 0

    assert "`use_skill`" in system_of(model.received[0])


SELF_EXPLANATORY = {
    "plan.steps", "Bash.command", "Bash.max_output_chars", "Edit.path", "Edit.old", "Grep.pattern", "Grep.ignore_case",
    "WebFetch.url", "Write.path", "Write.content", "script_help.skill_name", "script_run.skill_name",
}  # fmt: skip
"""Parameters whose name says it all: every description costs tokens in every request."""


def test_requests_describe_every_built_in_tool_and_unclear_parameter(workspace: Workspace, model: ModelServer) -> None:
    model.follow(says("Done"))

    assert workspace.agent("run", "-q", "Greet") == 0

    offered = {tool["function"]["name"]: tool["function"] for tool in model.received[0]["tools"]}
    assert {"Read", "Write", "Edit", "Glob", "Grep", "Bash", "WebFetch", "script_run", "plan", "finish"} <= set(offered)
    bare = {
        f"{name}.{parameter}"
        for name, tool in offered.items()
        for parameter, schema in tool["parameters"]["properties"].items()
        if not schema.get("description")
    }
    assert bare == SELF_EXPLANATORY
    assert all(tool["description"] for tool in offered.values())
    assert "relative to the workspace" in offered["Read"]["parameters"]["properties"]["path"]["description"]


def test_date_system_folder_and_branch_follow_the_stable_prefix(
    workspace: Workspace, model: ModelServer, capsys: Capture
) -> None:
    workspace.write(".git/HEAD", "ref: refs/heads/feature/rates\n")
    model.follow(says("Done"))

    days = [f"{datetime.now(UTC):%Y-%m-%d}"]
    assert workspace.agent("run", "-q", "Greet") == 0
    days.append(f"{datetime.now(UTC):%Y-%m-%d}")

    told = first_user(model.received[0])
    assert any(day in told for day in days)
    assert platform.system() in told
    assert str(workspace.folder) in told
    assert "branch feature/rates" in told
    assert str(workspace.folder) not in system_of(model.received[0])
    workspace.write(".git/HEAD", "ref: refs/heads/other\n")
    assert workspace.agent("replay", "latest", "--execute") == 0
    capsys.readouterr()
    assert workspace.agent("prompt", "show", "--run", "latest", "--turn", "1", "--brief") == 0
    assert "matches the request that was sent" in capsys.readouterr().out


def test_task_inputs_reach_the_model_as_json_and_unused_ones_cause_a_warning(
    workspace: Workspace, model: ModelServer, capsys: Capture
) -> None:
    workspace.write(".agent/tasks/report/TASK.md", TASK)
    model.follow(says("Done"))

    assert workspace.agent("task", "run", "report", "--input", "city=Oslo", "-q") == 0

    told = first_user(model.received[0])
    assert json.loads(told.split("```json\n")[1].split("\n```")[0]) == {"city": "Oslo", "days": "3"}
    capsys.readouterr()
    assert workspace.agent("validate") == 0
    assert "Input 'days' is in no body of the task" in "".join(capsys.readouterr())


def test_plan_of_the_model_is_recorded_and_shown(workspace: Workspace, model: ModelServer, capsys: Capture) -> None:
    steps = [{"step": "Look around", "status": "done"}, {"step": "Tidy up", "status": "in_progress"}]
    model.follow(calls("plan", steps=steps), says("Done"))

    assert workspace.agent("run", "Tidy up") == 0

    noted = [event["payload"] for event in workspace.events() if event["event_type"] == "plan_updated"]
    assert [event["steps"] for event in noted] == [steps]
    result = next(message for message in model.received[1]["messages"] if message["role"] == "tool")
    assert result["content"] == "Noted: 1 of 2 steps done; in progress: Tidy up."
    assert "1 of 2 done, now: Tidy up" in capsys.readouterr().err
