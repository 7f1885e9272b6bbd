"""A fork shares the first entries of a run and is an ordinary run."""

from pathlib import Path

import pytest
from run_scenarios import ENOUGH, SKILL, answer_all, build_tools, build_workspace, carry_out, open_at

from metier.engine.journal import read_entries
from metier.errors import UsageError
from metier.runtime.history.forks import ForkRequest, find_points, fork_run
from metier.runtime.history.replays import replay_run
from metier.runtime.runs import Runtime
from metier.testing.scripted import ScriptedProvider, ToolCall, calls, says

pytestmark = pytest.mark.anyio

USE_NOTES = calls(ToolCall("use_skill", {"skill": "notes", "reason": "It fits"}))
WORK = calls(ToolCall("Look", {"text": "a"}), ToolCall("Look", {"text": "b"}), ToolCall("Pay", {"text": "c"}))
ASK = calls(ToolCall("ask_user", {"question": "Which colour?"}))


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    return build_workspace(tmp_path / "project")


def find_requests(runtime: Runtime) -> ScriptedProvider:
    assert isinstance(runtime.host.provider, ScriptedProvider)
    return runtime.host.provider


async def test_a_fork_at_every_point_completes_and_replays_equal(workspace: Path) -> None:
    async with open_at(workspace, USE_NOTES, WORK, ASK, says("First end."), profile="guarded") as runtime:
        parent = await carry_out(runtime)
        entries = await read_entries(runtime.store, parent.run_id)
        points = find_points(parent.run_id, entries)

    assert len(points) >= 10
    under_way = {"model_call_started", "step_started", "approval_asked", "input_asked", "run_paused", "run_finished"}
    assert under_way.isdisjoint(point.kind for point in points)
    for point in points:
        async with open_at(workspace, *ENOUGH, profile="guarded") as runtime:
            fork = await fork_run(runtime, parent.run_id, ForkRequest(at=point.number))
            state = await answer_all(runtime, fork.state)

            taken = await read_entries(runtime.store, state.run_id)
            report = await replay_run(runtime, state.run_id)
            row = await runtime.store.find_run(state.run_id)

        assert state.status == "completed", point
        assert [entry.kind for entry in taken[: point.number]] == [entry.kind for entry in entries[: point.number]]
        assert report.outcome.divergence is None, point
        assert report.outcome.given == point.number
        assert row is not None
        assert row.parent_run_id == parent.run_id


async def test_a_fork_can_be_forked(workspace: Path) -> None:
    async with open_at(workspace, USE_NOTES, *ENOUGH) as runtime:
        parent = await carry_out(runtime)
        first = await fork_run(runtime, parent.run_id, ForkRequest(at=4))

        second = await fork_run(runtime, first.state.run_id, ForkRequest(at=5))

        assert second.state.status == "completed"
        assert (await replay_run(runtime, second.state.run_id)).is_equal


async def test_a_fork_point_during_a_step_is_rejected_with_the_nearest_valid_points(workspace: Path) -> None:
    async with open_at(workspace, WORK, *ENOUGH) as runtime:
        parent = await carry_out(runtime)
        entries = await read_entries(runtime.store, parent.run_id)
        started = next(n for n, entry in enumerate(entries, 1) if entry.kind == "step_started")

        with pytest.raises(UsageError) as refusal:
            await fork_run(runtime, parent.run_id, ForkRequest(at=started))

        assert f"Fork at {started - 1} or {started + 3}" in refusal.value.hint
        assert len(await runtime.store.list_runs()) == 1


@pytest.mark.parametrize("at", [0, 10_000])
async def test_a_number_outside_the_journal_is_refused(at: int, workspace: Path) -> None:
    async with open_at(workspace, *ENOUGH) as runtime:
        parent = await carry_out(runtime)

        with pytest.raises(UsageError):
            await fork_run(runtime, parent.run_id, ForkRequest(at=at))


async def test_a_fork_can_use_another_model_and_task_and_the_current_files(workspace: Path) -> None:
    async with open_at(workspace, *ENOUGH) as runtime:
        parent = await carry_out(runtime, task="take notes")
        file = workspace / "skills" / "notes" / "SKILL.md"
        file.write_text(SKILL.format(name="notes", description="Something else altogether."))

        fork = await fork_run(runtime, parent.run_id, ForkRequest(at=3, model="other-1", task="take more notes"))

        request = find_requests(runtime).requests[-1]
        assert set(fork.changed) >= {"skill:notes", "code:notes", "model", "task"}
        assert request.model == "other-1"
        assert "Something else altogether" in "".join(block.text for block in request.system)
        assert "take more notes" in str(request.messages[0])
        assert (await runtime.read(parent.run_id)) == parent


async def test_a_step_completed_before_the_fork_is_not_repeated(workspace: Path) -> None:
    tools = build_tools()
    async with open_at(workspace, WORK, *ENOUGH, tools=tools) as runtime:
        parent = await carry_out(runtime)
        entries = await read_entries(runtime.store, parent.run_id)
        after = next(n for n, entry in enumerate(entries, 1) if entry.kind == "progress_verified")

        await fork_run(runtime, parent.run_id, ForkRequest(at=after))

        assert [tool.ran for tool in tools if tool.info.name == "Pay"] == [["1.3"]]
