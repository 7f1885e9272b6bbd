"""A child run has no script or skill tool that the parent's `tools` list leaves out."""

import json
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
from agent_files import add_agent
from model_server import Reply, calls, running_model, says
from role_model import RoleModel
from run_workspace import Workspace, use_model

MARK = 'import json, pathlib\npathlib.Path("{}").write_text("ran")\nprint(json.dumps({{"summary": "ran"}}))\n'
TASK = """---
name: Mark it
{lists}tool_approvals:
  rules:
    - {{tool: script_run, allow: true}}
---

Run the script.
"""

type Prepare = Callable[..., RoleModel]


@pytest.fixture
def prepare(workspace: Workspace) -> Iterator[Prepare]:
    """Create a lead agent that delegates, and a helper that runs a script of a skill."""
    model = RoleModel()
    mark = workspace.folder / "mark"
    workspace.add_skill("marker", "Leave a mark with a script.", leave=MARK.format(mark))

    def build(*lead: Reply, lists: Sequence[str]) -> RoleModel:
        add_agent(workspace.folder, "lead", "profile: permissive", *lists, body="You are the lead.")
        skills = "skills: [inherit, hello-extended]"
        add_agent(workspace.folder, "helper", "profile: permissive", skills, body="You are the helper.")
        script = calls("script_run", skill_name="marker", script_name="leave")
        model.lines = {"lead": [*lead, says("done")], "helper": [script, says("done")], "boss": [script, says("done")]}
        return model

    with running_model(model):
        workspace.configure(model=use_model(model), runtime={"max_turns": 20})
        yield build


def offered_to(model: RoleModel, role: str) -> set[str]:
    return next({tool["function"]["name"] for tool in body["tools"]} for body in model.received if is_for(body, role))


def is_for(body: dict[str, Any], role: str) -> bool:
    return f"You are the {role}." in json.dumps(body["messages"])


DELEGATE = calls("delegate", agent="helper", task="Leave a mark")


def test_child_cannot_run_scripts_missing_from_the_list_of_its_parent(workspace: Workspace, prepare: Prepare) -> None:
    model = prepare(DELEGATE, lists=["tools: [Read, delegate]"])

    workspace.agent("run", "Go", "--agent", "lead")

    assert not (workspace.folder / "mark").exists()
    assert offered_to(model, "helper").isdisjoint({"script_list", "script_help", "script_run"})


def test_child_runs_scripts_on_the_list_of_its_parent(workspace: Workspace, prepare: Prepare) -> None:
    prepare(DELEGATE, lists=["tools: [Read, delegate, script_run]"])

    workspace.agent("run", "Go", "--agent", "lead")

    assert (workspace.folder / "mark").exists()


def test_child_of_an_agent_without_skills_runs_the_scripts_of_its_own_skills(
    workspace: Workspace, prepare: Prepare
) -> None:
    prepare(DELEGATE, lists=["skills: []"])

    workspace.agent("run", "Go", "--agent", "lead")

    assert (workspace.folder / "mark").exists()


def test_list_of_a_grandparent_applies_to_scripts_of_a_grandchild(workspace: Workspace, prepare: Prepare) -> None:
    model = prepare(calls("delegate", agent="middle", task="Go"), lists=["skills: []", "tools: [Read, delegate]"])
    add_agent(workspace.folder, "middle", "profile: permissive", "skills: []", body="You are the middle.")
    model.lines = {**model.lines, "middle": [DELEGATE, says("done")]}

    workspace.agent("run", "Go", "--agent", "lead")

    assert len(model.received) >= 6
    assert not (workspace.folder / "mark").exists()


@pytest.mark.parametrize("lists", ["", "tools: [Read, script_run]\n"], ids=["rule", "list and rule"])
def test_task_rule_does_not_allow_scripts_missing_from_the_list_of_the_run(
    workspace: Workspace, prepare: Prepare, lists: str
) -> None:
    workspace.write(".agent/tasks/mark-it/TASK.md", TASK.format(lists=lists))
    model = prepare(calls("run_task", task="mark-it"), lists=["tools: [Read, run_task]"])

    workspace.agent("run", "Go", "--agent", "lead")

    assert len(model.received) >= 3
    assert not (workspace.folder / "mark").exists()


def test_child_cannot_call_a_toolset_missing_from_the_list_of_its_parent(
    workspace: Workspace, prepare: Prepare
) -> None:
    model = prepare(DELEGATE, lists=["tools: [Read, delegate]"])

    workspace.agent("run", "Go", "--agent", "lead")

    assert not [name for name in offered_to(model, "helper") if "greet" in name]


def test_child_calls_the_toolset_of_a_skill_when_its_parent_has_no_list(workspace: Workspace, prepare: Prepare) -> None:
    model = prepare(DELEGATE, lists=["skills: []"])

    workspace.agent("run", "Go", "--agent", "lead")

    assert [name for name in offered_to(model, "helper") if "greet" in name]
