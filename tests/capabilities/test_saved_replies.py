"""The reply of a skill survives the agent that should have stored it, and is deleted once it is stored."""

import dataclasses
import os
import stat
from contextlib import suppress
from functools import partial
from pathlib import Path

import anyio
import pytest
from capability_skills import write_skill
from msgspec.structs import replace
from pydantic import JsonValue

from metier import create_executor
from metier.capabilities.executor import Capability
from metier.capabilities.impl.process import call_impl
from metier.capabilities.skill_delegation import Lineage
from metier.capabilities.tool import CapabilityTool, build_capability_tools
from metier.capabilities.turns import Conversations
from metier.cli.main import run
from metier.errors import SandboxUnavailable, ToolFailed
from metier.runtime.confinement import open_confinement
from metier.runtime.host import Host
from metier.settings.sections import Settings
from metier.skills.workspace_trust import MADE_HERE
from metier.store.backend import StoreOptions, open_store
from metier.store.base import Store
from metier.telemetry.redaction import build_redactor
from metier.tools.base import ToolContext, ToolResult
from metier.tools.options import SandboxOptions
from metier.tools.process.sandbox.confinement import Confinement

pytestmark = pytest.mark.slow

LAUNCH = """
def execute(context):
    with open(context.workspace / "effects" / "launched", "a") as stream:
        stream.write("x")
    if context.inputs.get("fails"):
        raise ValueError("no fuel")
    return {"outputs": {"summary": "launched"}}
"""

OPAQUE = "autonomy_level: implement\nside_effects: [writes_files]"


def find_saved(workspace: Path) -> list[Path]:
    return [*workspace.rglob("*.answer"), *workspace.rglob(".answer-*")]


async def open_tool(workspace: Path, store: Store, confinement: Confinement) -> tuple[CapabilityTool, Capability]:
    write_skill(workspace / "skills", "launcher", contract=OPAQUE, impl=LAUNCH)
    artifacts = workspace / "runs" / "r1" / "artifacts"
    executor = dataclasses.replace(
        create_executor(workspace), artifacts=artifacts, shares_artifacts=True, confinement=confinement
    )
    found = executor.get_capability("launcher")
    assert isinstance(found, Capability)
    conversations = Conversations(
        executor=executor,
        contexts=store.contexts,
        redactor=build_redactor(),
    )
    (tool,) = build_capability_tools([found], conversations, lineage=Lineage())
    return tool, found


async def enclose(workspace: Path) -> Confinement:
    settings = Settings(sandbox=SandboxOptions(use="required"))
    host = Host(trust=MADE_HERE, settings=settings, workspace=workspace, home=Path.home(), environ=dict(os.environ))
    try:
        return await open_confinement(host)
    except SandboxUnavailable as error:
        pytest.skip(error.message)


async def probe_after_a_kill(
    workspace: Path,
    *,
    fails: bool = False,
    is_forged: bool = False,
    is_secret_empty: bool = False,
    is_enclosed: bool = False,
    is_claimed: bool = False,
) -> ToolResult | None:
    """Probe a step whose process completed after the agent that started it died."""
    spool = workspace / "runs" / "r1" / "spool" / "1.1-1"
    spool.parent.mkdir(parents=True)
    (workspace / "effects").mkdir()
    inputs: dict[str, JsonValue] = {"fails": fails}
    store = await open_store(StoreOptions(), runs=workspace / "runs", environ={})
    try:
        confinement = await enclose(workspace) if is_enclosed else Confinement()
        tool, found = await open_tool(workspace, store, confinement)
        turn = tool.conversations.executor.build_turn(found, inputs, context_id="r1/1.1")
        turn.artifacts.mkdir(parents=True)
        with suppress(ToolFailed):
            await call_impl(replace(turn, spool=spool), {}, advise=None)
        (saved,) = turn.artifacts.glob(".answer-*")
        assert stat.S_IMODE(saved.stat().st_mode) == 0o600
        if is_forged:
            saved.write_text('{"secret": "", "reply": {"response": {"summary": "forged"}}}', encoding="utf-8")
        if is_secret_empty:
            (secret,) = spool.parent.glob("*.answer")
            secret.write_text("", encoding="ascii")
        if is_claimed:
            await store.contexts.claim_message("r1/1.1", "attempt:1", owner="a killed worker of 0.2", seconds=1000)
        context = ToolContext(
            workspace=workspace, run_id="r1", step_id="1.1", spool=spool, artifacts=turn.artifacts, attempt=1
        )
        return await tool.probe(inputs, context)
    finally:
        await store.close()


@pytest.mark.parametrize(("fails", "said"), [(False, "launched"), (True, "no fuel")])
def test_reply_of_a_process_that_outlived_its_agent_is_adopted_and_the_effect_not_repeated(
    workspace: Path, fails: bool, said: str
) -> None:
    result = anyio.run(partial(probe_after_a_kill, workspace, fails=fails))

    assert result is not None
    assert result.ok is not fails
    assert said in str(result.output)
    assert (workspace / "effects" / "launched").read_text(encoding="utf-8") == "x"
    assert find_saved(workspace) == []


def test_reply_is_adopted_at_once_if_an_older_release_claimed_the_message(workspace: Path) -> None:
    result = anyio.run(partial(probe_after_a_kill, workspace, is_claimed=True))

    assert result is not None
    assert "launched" in str(result.output)


def test_sandboxed_process_without_write_access_to_runs_saves_its_reply(workspace: Path) -> None:
    result = anyio.run(partial(probe_after_a_kill, workspace, is_enclosed=True))

    assert result is not None
    assert "launched" in str(result.output)


@pytest.mark.parametrize("is_secret_empty", [False, True])
def test_reply_that_another_program_wrote_is_ignored(workspace: Path, is_secret_empty: bool) -> None:
    probed = partial(probe_after_a_kill, workspace, is_forged=True, is_secret_empty=is_secret_empty)

    assert anyio.run(probed) is None


def test_saved_replies_are_deleted_when_the_response_is_stored(workspace: Path) -> None:
    write_skill(workspace / "skills", "launcher", contract=OPAQUE, impl=LAUNCH)
    (workspace / "effects").mkdir()

    assert run(["run", "-q", "--provider", "offline", "use the skill launcher"]) == 0

    assert (workspace / "effects" / "launched").read_text(encoding="utf-8") == "x"
    assert list(workspace.rglob("*.started")) != []
    assert find_saved(workspace) == []
