"""Deny rules added during a run apply at once; added allow rules do not."""

from pathlib import Path

import pytest
from workspaces import Drill, call, put

from metier.testing.scripted import says

pytestmark = pytest.mark.anyio

POLICY = ".agent/policy.yaml"
STOP = "tool_approvals:\n- {tool: Write, allow: false, reason: Emergency stop, when: {path: {startsWith: src/}}}\n"


@pytest.mark.parametrize("before", ["", "tool_approvals: [{tool: Bash, verdict: ask}]\n"])
async def test_an_approved_call_is_denied_by_a_rule_added_later(tmp_path: Path, before: str) -> None:
    workspace = tmp_path / "workspace"
    put(workspace, {"src/a": "", **({POLICY: before} if before else {})})
    drill = Drill(workspace, [call("Write", path="src/new.txt", content="x"), says("Done.")])
    state = await drill.run()
    await drill.decide("approved")
    put(workspace, {POLICY: STOP})

    ended = await drill.resume(state.run_id)

    assert ended.status == "completed"
    assert "Emergency stop" in drill.told[0]
    assert not (workspace / "src/new.txt").exists()


async def test_a_link_to_a_path_denied_later_is_denied(tmp_path: Path) -> None:
    workspace = tmp_path / "workspace"
    put(workspace, {"src/a": ""})
    (workspace / "to").symlink_to("src")
    drill = Drill(workspace, [call("Write", path="to/new.txt", content="x"), says("Done.")])
    state = await drill.run()
    await drill.decide("approved")
    put(workspace, {POLICY: STOP})

    await drill.resume(state.run_id)

    assert "Emergency stop" in drill.told[0]
    assert not (workspace / "src/new.txt").exists()


async def test_a_new_rule_for_a_command_applies_to_a_paused_run(tmp_path: Path) -> None:
    workspace = tmp_path / "workspace"
    workspace.mkdir()
    drill = Drill(workspace, [call("Bash", command="touch made"), says("Done.")])
    state = await drill.run()
    await drill.decide("approved")
    put(workspace, {POLICY: "tool_approvals: [{tool: Bash, allow: false, reason: Emergency stop}]\n"})

    await drill.resume(state.run_id)

    assert "Emergency stop" in drill.told[0]
    assert not (workspace / "made").exists()


async def test_an_allow_rule_added_later_has_no_effect(tmp_path: Path) -> None:
    workspace = tmp_path / "workspace"
    workspace.mkdir()
    drill = Drill(workspace, [call("Write", path="new.txt", content="x"), says("Done.")])
    state = await drill.run()
    put(workspace, {POLICY: "tool_approvals: [{tool: Write, allow: true}]\n"})

    waiting = await drill.resume(state.run_id)

    assert waiting.pause is not None
    assert not (workspace / "new.txt").exists()


async def test_a_policy_that_becomes_unreadable_blocks_calls(tmp_path: Path) -> None:
    workspace = tmp_path / "workspace"
    workspace.mkdir()
    drill = Drill(workspace, [call("Write", path="new.txt", content="x"), says("Done.")])
    state = await drill.run()
    await drill.decide("approved")
    put(workspace, {POLICY: "tool_approvals: [{tool: Write, alow: false}]\n"})

    await drill.resume(state.run_id)

    assert "The policy of this workspace cannot be used" in drill.told[0]
    assert not (workspace / "new.txt").exists()
