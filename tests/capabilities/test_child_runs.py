"""A skill that delegates to another skill: a separate run, reused, bounded by its parents."""

import json
from pathlib import Path

import anyio
import pytest
from capability_skills import write_skill

from metier import create_agent_adapter, create_executor
from metier.capabilities.protocol import AgentResponse
from metier.capabilities.skill_delegation import DelegationRequest
from metier.cli.main import run
from metier.engine.state.run_state import RunState
from metier.runtime.host import Host
from metier.runtime.requests import RunRequest
from metier.runtime.runs import open_runtime
from metier.runtime.skill_router import create_run_router
from metier.settings.sections import Settings
from metier.skills.workspace_trust import MADE_HERE
from metier.store.failures import StoreUnavailable
from metier.testing.scripted import ScriptedProvider, ToolCall, calls, says

pytestmark = pytest.mark.slow

PARENT_CONTRACT = """
interaction_outcomes: {{allowed_intermediate_states: [delegating], max_turns: 4}}
depends_on: [{child}]
autonomy_level: {level}
"""
PARENT = """
def execute(context):
    if context.delegated is None:
        return {{"state": "delegating", "delegation": {{"skill": "{child}", "inputs": {inputs}}}}}
    return {{"outputs": {{"summary": "got " + repr(context.delegated), "child": dict(context.delegated)}}}}
"""
ADDS = "def execute(context):\n    return {'sum': context.inputs['n'] + 1}\n"
ASKS = """
def execute(context):
    if "name" not in context.inputs:
        return {"state": "input_required", "input_request": {"missing_fields": [{"name": "name"}]}}
    return {"outputs": {"text": context.inputs["name"] * context.inputs["n"]}}
"""
WAITS = "interaction_outcomes: {allowed_intermediate_states: [input_required]}\n"
WRITES = "autonomy_level: implement\nside_effects: {kinds: [writes_files], repeat: idempotent}\n"
TOUCHES = "def execute(context):\n    (context.workspace / 'touched').write_text('x')\n    return {'done': True}\n"


def write_parent(workspace: Path, *, name: str = "parent", child: str = "child", level: str = "implement") -> None:
    contract, impl = PARENT_CONTRACT.format(child=child, level=level), PARENT.format(child=child, inputs='{"n": 2}')
    write_skill(workspace / "skills", name, contract=contract, impl=impl)


def write_child(workspace: Path, *, contract: str = "", impl: str = ADDS) -> None:
    write_skill(workspace / "skills", "child", contract=contract, impl=impl)


def call(*arguments: str, capsys: pytest.CaptureFixture[str]) -> tuple[int, str]:
    code = run(list(arguments))
    return code, capsys.readouterr().out


def start(capsys: pytest.CaptureFixture[str], *, task: str = "use the skill parent") -> tuple[int, str]:
    return call("run", "-q", "--provider", "offline", task, capsys=capsys)


def list_runs(capsys: pytest.CaptureFixture[str]) -> list[dict[str, str]]:
    return json.loads(call("runs", "list", "--json", capsys=capsys)[1])


def test_skill_called_in_a_run_delegates_to_a_child_run_and_gets_its_answer(
    workspace: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_parent(workspace)
    write_child(workspace)

    code, said = start(capsys)

    child, parent = list_runs(capsys)
    assert code == 0
    assert "{'sum': 3}" in said
    assert (child["status"], child["parent_run_id"]) == ("completed", parent["run_id"])
    assert child["task"] == "Call skill 'child' for skill 'parent'"
    assert (workspace / "runs" / child["run_id"] / "events.jsonl").exists()
    shown = call("runs", "show", parent["run_id"], capsys=capsys)[1]
    assert f"child:   {child['run_id']}  completed  skill child" in shown
    below = call("runs", "show", child["run_id"], capsys=capsys)[1]
    assert f"parent:  {parent['run_id']}" in below
    assert "skill:   child, called for parent" in below


def test_recorded_delegation_replays_without_calling_anything(
    workspace: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_parent(workspace)
    write_child(workspace, contract=WRITES, impl=TOUCHES)
    start(capsys)
    (workspace / "touched").unlink()

    codes = [call("replay", "--execute", row["run_id"], capsys=capsys)[0] for row in list_runs(capsys)]

    assert codes == [0, 0]
    assert not (workspace / "touched").exists()
    assert len(list_runs(capsys)) == 2


def test_question_of_the_child_is_answered_by_resuming_the_parent(
    workspace: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_parent(workspace)
    write_child(workspace, contract=WAITS, impl=ASKS)

    waiting, _ = start(capsys)
    shown = call("runs", "show", "latest", capsys=capsys)[1]
    code, said = call("resume", "latest", "-q", "--input", "name=ab", capsys=capsys)

    assert (waiting, code) == (4, 0)
    assert "name" in shown
    assert "abab" in said
    assert [row["status"] for row in list_runs(capsys)] == ["completed", "completed"]


def test_failure_of_the_child_is_returned_to_the_parent(workspace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_parent(workspace)
    write_child(workspace, impl="def execute(c):\n    raise ValueError('no such thing')\n")

    code, said = start(capsys)

    assert code == 0
    assert "'state': 'failed'" in said
    assert "no such thing" in said
    assert [row["status"] for row in list_runs(capsys)] == ["failed", "completed"]


def test_policy_that_becomes_unusable_fails_the_step_before_a_child_starts(
    workspace: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    contract = """
interaction_outcomes: {allowed_intermediate_states: [delegating, input_required], max_turns: 4}
depends_on: [child]
"""
    impl = """
def execute(context):
    if "name" not in context.inputs:
        return {"state": "input_required", "input_request": {"missing_fields": [{"name": "name"}]}}
    return {"state": "delegating", "delegation": {"skill": "child", "inputs": {"n": 2}}}
"""
    write_skill(workspace / "skills", "parent", contract=contract, impl=impl)
    write_child(workspace)
    start(capsys)
    (workspace / ".agent").mkdir()
    (workspace / ".agent" / "policy.yaml").write_text("tool_approvals: [", encoding="utf-8")

    code, _ = call("resume", "latest", "-q", "--input", "name=ab", capsys=capsys)

    shown = call("runs", "show", "latest", capsys=capsys)[1]
    assert code == 1
    assert "The policy of this workspace cannot be used" in shown


def test_deny_rule_for_the_child_applies_below_its_parent_too(
    workspace: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_parent(workspace)
    write_child(workspace, contract=WRITES, impl=TOUCHES)
    rules = "tool_approvals: {rules: [{tool: child.invoke, allow: false}]}"
    (workspace / ".agent").mkdir()
    (workspace / ".agent" / "policy.yaml").write_text(rules, encoding="utf-8")

    _, said = start(capsys)

    assert not (workspace / "touched").exists()
    assert "'state': 'failed'" in said


def test_child_has_no_more_permissions_than_its_parent(workspace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_parent(workspace, level="suggest")
    write_child(workspace, contract=WRITES, impl=TOUCHES)

    _, said = start(capsys)

    assert "but its caller has only 'suggest'" in said
    assert not (workspace / "touched").exists()


def test_canceling_the_parent_cancels_the_child_that_it_waits_for(
    workspace: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_parent(workspace)
    write_child(workspace, contract=WAITS, impl=ASKS)
    start(capsys)

    call("runs", "cancel", "latest", capsys=capsys)

    assert [row["status"] for row in list_runs(capsys)] == ["canceled", "canceled"]


def test_cycle_of_runs_is_rejected_with_a_message(workspace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_parent(workspace, child="child")
    write_parent(workspace, name="child", child="parent")

    _, said = start(capsys)

    assert "Delegation cycle: parent → child → parent" in said
    assert len(list_runs(capsys)) == 2


def test_depth_of_delegation_between_runs_is_limited(workspace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for number in range(7):
        write_parent(workspace, name=f"skill-{number}", child=f"skill-{number + 1}")
    write_skill(workspace / "skills", "skill-7", impl="def execute(c):\n    return {'bottom': True}\n")

    _, said = start(capsys, task="use the skill skill-0")

    assert "Delegation is nested more than 5 deep" in said
    assert "bottom" not in said
    assert len(list_runs(capsys)) == 5


def test_skill_with_an_entrypoint_can_be_the_child(workspace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_parent(workspace)
    entry = "entrypoint: {script: work.py, args: []}\n"
    folder = write_skill(workspace / "skills", "child", contract=entry, impl=None)
    (folder / "scripts").mkdir()
    (folder / "scripts" / "work.py").write_text(
        'print(\'{"success": true, "result": {"worked": 1}}\')\n', encoding="utf-8"
    )

    code, said = start(capsys)

    assert code == 0
    assert "'state': 'completed'" in said
    assert list_runs(capsys)[0]["status"] == "completed"


def test_delegation_from_python_is_a_run_of_the_workspace(workspace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_parent(workspace)
    write_child(workspace, contract=WAITS, impl=ASKS)
    adapter = create_agent_adapter(create_executor(workspace), router=create_run_router(workspace))

    waiting = adapter.invoke("parent", {}, "ctx", message_id="m1")
    again = adapter.invoke("parent", {}, "ctx", message_id="m1")
    done = adapter.invoke("parent", {"name": "ab"}, "ctx", resume=True)

    (child,) = list_runs(capsys)
    assert (waiting.state, waiting.metadata.agent_state_detail) == ("delegating", "child_waits")
    assert waiting.input_request is not None
    assert [field.name for field in waiting.input_request.missing_fields] == ["name"]
    assert waiting.metadata.handed_on is not None
    assert waiting.metadata.handed_on.run_id == child["run_id"]
    assert again.metadata.replayed
    assert done.outputs["child"] == {
        "skill": "child",
        "state": "completed",
        "outputs": {"text": "abab"},
        "errors": [],
    }
    shown = call("runs", "show", child["run_id"], capsys=capsys)[1]
    assert "for:     conversation ctx" in shown


def test_second_delegation_of_one_skill_is_a_second_run(workspace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    impl = """
def execute(context):
    seen = context.recall("seen", []) + ([context.delegated["outputs"]["sum"]] if context.delegated else [])
    context.remember("seen", seen)
    if len(seen) < 2:
        return {"state": "delegating", "delegation": {"skill": "child", "inputs": {"n": len(seen)}}}
    return {"outputs": {"summary": f"sums {seen}"}}
"""
    contract = PARENT_CONTRACT.format(child="child", level="read")
    write_skill(workspace / "skills", "parent", contract=contract, impl=impl)
    write_child(workspace)

    _, said = start(capsys)

    assert "sums [1, 2]" in said
    assert len(list_runs(capsys)) == 3


def test_python_caller_that_dies_while_the_child_works_finds_the_same_run(
    workspace: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The router fails after driving the child, like a process that ends there."""
    write_parent(workspace)
    write_child(workspace, contract=WRITES, impl=TOUCHES)
    real = create_run_router(workspace)

    class Dies:
        async def delegate(self, request: DelegationRequest) -> AgentResponse:
            await real.delegate(request)
            raise StoreUnavailable("The process ends here")

    executor = create_executor(workspace)
    with pytest.raises(StoreUnavailable):
        create_agent_adapter(executor, router=Dies()).invoke("parent", {}, "ctx", message_id="m1")
    done = create_agent_adapter(executor, router=real).invoke("parent", {}, "ctx", message_id="m1")

    assert done.state == "completed"
    assert len(list_runs(capsys)) == 1


def test_skill_in_a_task_step_can_delegate(workspace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_parent(workspace)
    write_child(workspace)
    task = workspace / ".agent" / "tasks" / "add" / "TASK.md"
    task.parent.mkdir(parents=True)
    task.write_text("---\nname: Add\nskills: [parent, child]\n---\n\nUse the skill parent.\n", encoding="utf-8")

    code, said = call("task", "run", "add", "-q", "--provider", "offline", capsys=capsys)

    lowest, step, whole = list_runs(capsys)
    assert code == 0
    assert "{'sum': 3}" in said
    assert (lowest["parent_run_id"], step["parent_run_id"]) == (step["run_id"], whole["run_id"])


def test_model_gets_the_combined_output_of_two_skills_for_its_inputs(
    workspace: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_parent(workspace)
    write_child(workspace)
    script = (calls(ToolCall("use_skill", {"skill": "parent", "inputs": {}})), says("done"))
    host = Host(
        trust=MADE_HERE,
        settings=Settings(),
        workspace=workspace,
        home=workspace,
        environ={},
        provider=ScriptedProvider(*script),
    )

    async def drive() -> RunState:
        async with open_runtime(host) as runtime:
            return await runtime.start(RunRequest(task="add"))

    state = anyio.run(drive)

    assert (state.status, state.result) == ("completed", "done")
    assert "{'sum': 3}" in state.results[0]
    assert [(child.skill, child.status) for child in state.children] == [("child", "completed")]
    assert len(list_runs(capsys)) == 2


def test_approval_that_the_child_needs_is_given_to_the_child_and_the_parent_continues(
    workspace: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_parent(workspace)
    write_child(workspace, contract=WRITES, impl=TOUCHES)
    (workspace / ".agent").mkdir()
    rules = "tool_approvals: {rules: [{tool: child.invoke, verdict: ask}]}"
    (workspace / ".agent" / "policy.yaml").write_text(rules, encoding="utf-8")

    waiting, _ = start(capsys)
    child, _ = list_runs(capsys)
    (asked,) = json.loads(call("approvals", "list", "--json", capsys=capsys)[1])
    was_touched = (workspace / "touched").exists()
    call("approvals", "approve", asked["approval_id"], capsys=capsys)
    code, _ = call("resume", "latest", "-q", capsys=capsys)

    assert (waiting, code) == (3, 0)
    assert asked["run_id"] == child["run_id"]
    assert not was_touched
    assert (workspace / "touched").exists()
    assert [row["status"] for row in list_runs(capsys)] == ["completed", "completed"]


def test_skill_hidden_from_the_agent_cannot_be_reached_through_another(
    workspace: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_parent(workspace)
    write_child(workspace, contract=WRITES, impl=TOUCHES)
    agent = workspace / ".agent" / "agents" / "narrow" / "AGENT.md"
    agent.parent.mkdir(parents=True)
    agent.write_text("---\nname: Narrow\ntools: [parent.invoke]\n---\n\nAdd.\n", encoding="utf-8")

    code, said = call("run", "-q", "--provider", "offline", "--agent", "narrow", "use the skill parent", capsys=capsys)

    assert code == 0
    assert "Skill 'child' cannot be called here" in said
    assert not (workspace / "touched").exists()
