"""What a skill answered survives the agent that should have stored it, and is not left lying about."""

import stat
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path

import anyio
import pytest
from capability_skills import write_skill
from pydantic import JsonValue

from metier.capabilities.delegation import Lineage
from metier.capabilities.executor import Capability, create_executor
from metier.capabilities.impl_process import call_impl
from metier.capabilities.kept_answers import name_answer
from metier.capabilities.tool import CapabilityTool, build_capability_tools
from metier.capabilities.turns import Conversations
from metier.cli.main import run
from metier.errors import ToolFailed
from metier.store.base import Store
from metier.store.opening import open_store
from metier.store.options import StoreOptions
from metier.store.tokens import load_resume_keys
from metier.telemetry.redaction import build_redactor
from metier.tools.base import ToolContext, ToolResult

LAUNCH = """
def execute(context):
    with open(context.workspace / "launched", "a") as stream:
        stream.write("x")
    if context.inputs.get("fails"):
        raise ValueError("no fuel")
    return {"outputs": {"summary": "launched"}}
"""
OPAQUE = "autonomy_level: implement\nside_effects: [writes_files]"


async def open_tool(workspace: Path, store: Store) -> tuple[CapabilityTool, Capability]:
    write_skill(workspace / "skills", "launcher", contract=OPAQUE, impl=LAUNCH)
    executor = create_executor(workspace)
    found = executor.find("launcher")
    assert isinstance(found, Capability)
    conversations = Conversations(
        executor=executor,
        contexts=store.contexts,
        redactor=build_redactor(),
        keys=load_resume_keys(workspace / "runs", {}),
        owner="somebody",
    )
    (tool,) = build_capability_tools([found], conversations, lineage=Lineage())
    return tool, found


async def probe_after_a_kill(workspace: Path, *, fails: bool) -> ToolResult | None:
    """The process of the skill ran to its end, and whoever started it died at that moment."""
    spool = workspace / "runs" / "spool" / "1.1-1"
    spool.parent.mkdir(parents=True)
    inputs: dict[str, JsonValue] = {"fails": fails}
    store = await open_store(StoreOptions(), runs=workspace / "runs", environ={})
    try:
        tool, found = await open_tool(workspace, store)
        turn = tool.conversations.executor.build_turn(found, inputs, context_id="r1/1.1")
        turn.artifacts.mkdir(parents=True)
        with suppress(ToolFailed):
            await call_impl(replace(turn, spool=spool), {}, advise=None)
        assert stat.S_IMODE(name_answer(spool, turn=1, call=0).stat().st_mode) == 0o600
        return await tool.probe(inputs, ToolContext(workspace=workspace, run_id="r1", step_id="1.1", spool=spool))
    finally:
        await store.close()


@pytest.mark.parametrize(("fails", "said"), [(False, "launched"), (True, "no fuel")])
def test_answer_of_a_process_that_outlived_its_agent_is_adopted_and_the_effect_not_repeated(
    workspace: Path, fails: bool, said: str
) -> None:
    result = anyio.run(partial(probe_after_a_kill, workspace, fails=fails))

    assert result is not None
    assert result.ok is not fails
    assert said in str(result.output)
    assert (workspace / "launched").read_text(encoding="utf-8") == "x"
    assert list(workspace.rglob("*.answer")) == []


def test_answers_are_gone_when_the_store_has_them(workspace: Path) -> None:
    write_skill(workspace / "skills", "launcher", contract=OPAQUE, impl=LAUNCH)

    assert run(["run", "-q", "--provider", "offline", "use the skill launcher"]) == 0

    assert (workspace / "launched").read_text(encoding="utf-8") == "x"
    assert list(workspace.rglob("*.started")) != []
    assert list(workspace.rglob("*.answer")) == []
