"""Delegation between skills: routed, bounded, awaited."""

from pathlib import Path

import pytest
from capability_skills import write_skill

from metier import create_agent_adapter, create_executor
from metier.capabilities.adapter import AgentAdapter
from metier.capabilities.protocol import AgentResponse

pytestmark = pytest.mark.slow

DELEGATES = """
interaction_outcomes:
  allowed_intermediate_states: [delegating, input_required]
  max_turns: 4
state_persistence: full_events
depends_on: [{child}]
autonomy_level: suggest
"""
PARENT = """
def execute(context):
    if context.delegated is None:
        return {{"state": "delegating", "delegation": {{"skill": "{child}", "inputs": {{"n": 2}}}}}}
    return {{"child": dict(context.delegated), "turn": context.turn}}
"""
CHILD = """
def execute(context):
    with open(context.artifacts / "calls", "a") as stream:
        stream.write("x")
    if "name" not in context.inputs:
        return {"state": "input_required", "input_request": {"missing_fields": [{"name": "name"}]}}
    return {"outputs": {"text": context.inputs["name"] * context.inputs["n"]}}
"""
WRITES = "autonomy_level: suggest\nside_effects: {kinds: [writes_files], repeat: idempotent}\n"
WAITS = "interaction_outcomes: {allowed_intermediate_states: [input_required]}\n"


def write_pair(workspace: Path, *, child_contract: str = WRITES + WAITS, child: str = CHILD) -> None:
    parent = PARENT.format(child="child")
    write_skill(workspace / "skills", "parent", contract=DELEGATES.format(child="child"), impl=parent)
    write_skill(workspace / "skills", "child", contract=child_contract, impl=child)


def open_adapter(workspace: Path, *, routes: bool = True) -> AgentAdapter:
    return create_agent_adapter(create_executor(workspace), routes=routes)


def detail(response: AgentResponse) -> tuple[str, str]:
    return response.state.value, response.metadata.agent_state_detail


def test_delegation_without_a_router_is_blocked(workspace: Path) -> None:
    write_pair(workspace)

    assert detail(open_adapter(workspace, routes=False).invoke("parent", {}, "ctx")) == ("blocked", "no_router")


def test_parent_continues_with_the_output_of_the_child(workspace: Path) -> None:
    write_pair(workspace, child_contract="", child="def execute(c):\n    return {'sum': c.inputs['n'] + 1}\n")

    response = open_adapter(workspace).invoke("parent", {}, "ctx")

    assert response.outputs == {
        "child": {"skill": "child", "state": "completed", "outputs": {"sum": 3}, "errors": []},
        "turn": 2,
    }


def test_failure_of_the_child_is_reported_to_the_parent(workspace: Path) -> None:
    write_pair(workspace, child_contract="", child="def execute(c):\n    raise ValueError('no')\n")

    child = open_adapter(workspace).invoke("parent", {}, "ctx").outputs["child"]

    assert isinstance(child, dict)
    assert child["state"] == "failed"


def test_question_of_the_child_reaches_the_caller_and_the_answer_reaches_the_child(workspace: Path) -> None:
    write_pair(workspace)

    waiting = open_adapter(workspace).invoke("parent", {}, "ctx")
    done = open_adapter(workspace).invoke("parent", {"name": "ab"}, "ctx", resume=True)

    assert detail(waiting) == ("delegating", "child_waits")
    assert waiting.input_request is not None
    assert [field.name for field in waiting.input_request.missing_fields] == ["name"]
    assert done.outputs["turn"] == 2
    child = done.outputs["child"]
    assert isinstance(child, dict)
    assert child["outputs"] == {"text": "abab"}


def test_existing_child_is_reused(workspace: Path) -> None:
    write_pair(workspace)
    adapter = open_adapter(workspace)
    token = adapter.invoke("parent", {}, "ctx", message_id="m1").metadata.resume_token

    again = adapter.invoke("parent", {}, "ctx", message_id="m1")
    adapter.invoke("parent", {"name": "a"}, "ctx", resume_token=token, message_id="m2")
    adapter.invoke("parent", {"name": "a"}, "ctx", resume_token=token, message_id="m2")

    assert again.metadata.replayed
    (calls,) = (workspace / "runs" / "artifacts").rglob("calls")
    assert calls.read_text(encoding="utf-8") == "xx"


def test_delegation_to_a_skill_missing_from_depends_on_is_rejected(workspace: Path) -> None:
    write_skill(
        workspace / "skills", "parent", contract=DELEGATES.format(child="child"), impl=PARENT.format(child="other")
    )
    write_skill(workspace / "skills", "child")
    write_skill(workspace / "skills", "other")

    assert detail(open_adapter(workspace).invoke("parent", {}, "ctx")) == ("blocked", "undeclared_dependency")


def test_child_has_no_more_permissions_than_its_parent(workspace: Path) -> None:
    write_pair(workspace, child_contract="autonomy_level: implement\nside_effects: [writes_files]")

    child = open_adapter(workspace).invoke("parent", {}, "ctx").outputs["child"]

    assert isinstance(child, dict)
    assert child["state"] == "blocked"
    assert not (workspace / "calls").exists()


def test_delegation_cycle_is_detected(workspace: Path) -> None:
    for one, other in (("first", "second"), ("second", "first")):
        contract, impl = DELEGATES.format(child=other), PARENT.format(child=other)
        write_skill(workspace / "skills", one, contract=contract, impl=impl)

    child = open_adapter(workspace).invoke("first", {}, "ctx").outputs["child"]

    assert isinstance(child, dict)
    errors = child["errors"]
    assert isinstance(errors, list)
    assert "first → second → first" in str(errors[0])


@pytest.mark.parametrize("depth", [5, 7])
def test_depth_of_delegation_is_limited(workspace: Path, depth: int) -> None:
    for number in range(depth):
        child = f"skill-{number + 1}"
        contract, impl = DELEGATES.format(child=child), PARENT.format(child=child)
        write_skill(workspace / "skills", f"skill-{number}", contract=contract, impl=impl)
    write_skill(workspace / "skills", f"skill-{depth}", impl="def execute(c):\n    return {'bottom': True}\n")

    response = open_adapter(workspace).invoke("skill-0", {}, "ctx")

    assert ("bottom" in str(response.outputs)) is False
    assert "Delegation is nested more than 5 deep" in str(response.outputs)
