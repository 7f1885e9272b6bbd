"""Delegation between agents: a child run with its own journal, fewer permissions and a share of the budget."""

from pathlib import Path

import pytest
from pydantic import JsonValue
from teams import Cast, Deed, find_told, open_team, write, write_agents

from metier.engine.entries.task import ChildRequested
from metier.engine.journal import read_entries
from metier.engine.stopper import Stopper
from metier.ids import CHILD
from metier.runtime.answers import Answer
from metier.runtime.driver import DriveOptions
from metier.runtime.history.forks import ForkRequest, find_points, fork_run
from metier.runtime.history.replays import replay_run
from metier.runtime.requests import RunRequest
from metier.tools.base import ToolContext, ToolResult

pytestmark = pytest.mark.anyio

ASK = ("delegate", {"agent": "writer", "task": "Write the notes"})


async def test_result_of_the_child_is_the_result_of_the_step(tmp_path: Path) -> None:
    write_agents(tmp_path, "writer")
    cast = Cast({"boss": [ASK, ("finish", {"result": "done"})], "writer": [("finish", {"result": "the notes"})]})

    async with open_team(tmp_path, cast) as runtime:
        state = await runtime.start(RunRequest(task="Get the notes written"))
        (child,) = state.children
        row = await runtime.store.find_run(child.run_id)
        below = await runtime.read(child.run_id)

    assert (state.status, state.result) == ("completed", "done")
    assert child.run_id.startswith(CHILD)
    assert child.status == "completed"
    assert row is not None
    assert row.parent_run_id == state.run_id
    assert below.started is not None
    assert (below.started.task, below.started.agent) == ("Write the notes", "writer")
    assert "the notes" in find_told(cast.requests[-1])
    assert (runtime.folder(child.run_id) / "events.jsonl").exists()


async def test_parent_replays_from_its_record_without_a_child(tmp_path: Path) -> None:
    write_agents(tmp_path, "writer")
    cast = Cast({"boss": [ASK, ("finish", {"result": "done"})], "writer": [("finish", {"result": "the notes"})]})

    async with open_team(tmp_path, cast) as runtime:
        state = await runtime.start(RunRequest(task="Get the notes written"))
        asked = len(cast.requests)
        parent = await replay_run(runtime, state.run_id)
        child = await replay_run(runtime, state.children[0].run_id)
        rows = await runtime.store.list_runs()

    assert parent.outcome.divergence is None
    assert child.outcome.divergence is None
    assert len(cast.requests) == asked
    assert len(rows) == 2


async def test_fork_after_a_delegation_uses_the_recorded_result(tmp_path: Path) -> None:
    write_agents(tmp_path, "writer")
    cast = Cast({"boss": [ASK, ("finish", {"result": "done"})], "writer": [("finish", {"result": "the notes"})]})

    async with open_team(tmp_path, cast) as runtime:
        state = await runtime.start(RunRequest(task="Get the notes written"))
        entries = await read_entries(runtime.store, state.run_id)
        last = find_points(state.run_id, entries)[-1]
        fork = await fork_run(runtime, state.run_id, ForkRequest(at=last.number))
        rows = await runtime.store.list_runs()

    assert fork.state.status == "completed"
    assert sum(row.run_id.startswith(CHILD) for row in rows) == 1


async def test_parent_waits_while_the_child_waits_for_approval(tmp_path: Path) -> None:
    write_agents(tmp_path, "writer", more="tool_approvals:\n  rules:\n    - {tool: pay, verdict: ask}\n")
    cast = Cast(
        {
            "boss": [ASK, ("finish", {"result": "done"})],
            "writer": [("pay", {}), ("finish", {"result": "paid"})],
        }
    )
    pay = Deed("pay")

    async with open_team(tmp_path, cast, tools=[pay]) as runtime:
        state = await runtime.start(RunRequest(task="Get it paid"))
        row = await runtime.store.find_run(state.run_id)
        waiting = await runtime.get_waiting(state)
        again = await runtime.resume(state.run_id)
        (question,) = await runtime.approvals.list_all(status="open")
        await runtime.store.decide_approval(question.row.approval_id, status="approved", decided_by="kim")
        ended = await runtime.resume(state.run_id)
        entries = await read_entries(runtime.store, state.run_id)

    assert (state.status, again.status) == ("delegating", "delegating")
    assert row is not None
    assert row.status == "delegating"
    assert waiting.pause is not None
    assert (waiting.run_id, waiting.pause.pause) == (state.children[0].run_id, "approval")
    assert (ended.status, ended.result) == ("completed", "done")
    assert len(pay.ran) == 1
    assert sum(isinstance(entry, ChildRequested) for entry in entries) == 1


async def test_answer_to_the_parent_reaches_the_child_that_asks(tmp_path: Path) -> None:
    write_agents(tmp_path, "writer")
    cast = Cast(
        {
            "boss": [ASK, ("finish", {"result": "done"})],
            "writer": [("ask_user", {"question": "Which colour?"}), ("finish", {"result": "painted"})],
        }
    )

    async with open_team(tmp_path, cast) as runtime:
        state = await runtime.start(RunRequest(task="Paint it"))
        waiting = await runtime.get_waiting(state)
        ended = await runtime.resume(state.run_id, Answer(values={"answer": "blue"}, by="kim"))

    assert waiting.status == "input_required"
    assert ended.status == "completed"
    assert "blue" in find_told(cast.requests[-2])


async def test_child_has_no_more_permissions_than_its_ancestors(tmp_path: Path) -> None:
    write_agents(
        tmp_path,
        "lead",
        more="tool_approvals:\n  rules:\n    - {tool: pay, allow: false}\n    - {tool: delegate, allow: true}\n",
    )
    write_agents(tmp_path, "writer", more="tool_approvals:\n  rules:\n    - {tool: pay, allow: true}\n")
    cast = Cast(
        {
            "lead": [ASK, ("finish", {"result": "done"})],
            "writer": [("pay", {}), ("finish", {"result": "tried"})],
        }
    )
    pay = Deed("pay")

    async with open_team(tmp_path, cast, tools=[pay]) as runtime:
        state = await runtime.start(RunRequest(task="Get it paid", agent="lead"))
        report = await replay_run(runtime, state.children[0].run_id)

    assert state.status == "completed"
    assert pay.ran == []
    assert "holds for agent 'lead'" in find_told(cast.requests[-2])
    assert report.outcome.divergence is None


async def test_child_has_no_tool_that_its_parent_lacks(tmp_path: Path) -> None:
    write_agents(tmp_path, "lead", more="tools: [look, delegate]\n")
    write_agents(tmp_path, "writer")
    cast = Cast({"lead": [ASK, ("finish", {"result": "done"})], "writer": [("finish", {"result": "x"})]})

    async with open_team(tmp_path, cast, tools=[Deed("pay"), Deed("look", "read")]) as runtime:
        await runtime.start(RunRequest(task="Get it paid", agent="lead"))

    offered = {tool.name for tool in cast.requests[1].tools}
    assert "look" in offered
    assert "pay" not in offered


async def test_agent_that_waits_for_this_run_cannot_be_delegated_to(tmp_path: Path) -> None:
    write_agents(tmp_path, "lead", "writer", "other")
    back = ("delegate", {"agent": "lead", "task": "Do it yourself"})
    cast = Cast({"lead": [ASK, ("finish", {"result": "a"})], "writer": [back, ("finish", {"result": "b"})]})

    async with open_team(tmp_path, cast) as runtime:
        state = await runtime.start(RunRequest(task="Go", agent="lead"))
        rows = await runtime.store.list_runs()

    assert state.status == "completed"
    assert len(rows) == 2
    assert "Agent 'lead' waits for this run already" in find_told(cast.requests[2])


async def test_delegation_depth_is_limited(tmp_path: Path) -> None:
    names = ["a", "b", "c", "d"]
    write_agents(tmp_path, *names)
    lines = {
        name: [("delegate", {"agent": following, "task": "Go on"}), ("finish", {"result": name})]
        for name, following in zip(["boss", *names], [*names, "nobody"], strict=True)
    }
    cast = Cast(lines)

    async with open_team(tmp_path, cast, max_delegation_depth=2, max_turns=40) as runtime:
        state = await runtime.start(RunRequest(task="Go"))
        rows = await runtime.store.list_runs()

    assert state.status == "completed"
    assert len(rows) == 3


async def test_turns_of_children_are_limited_and_count_toward_the_parent(tmp_path: Path) -> None:
    write_agents(tmp_path, "writer")
    cast = Cast(
        {
            "boss": [ASK, ASK, ("finish", {"result": "done"})],
            "writer": [("look", {}), ("look", {"at": 2}), ("look", {"at": 3}), ("look", {"at": 4})],
        }
    )

    async with open_team(tmp_path, cast, tools=[Deed("look", "read")], max_turns=5) as runtime:
        state = await runtime.start(RunRequest(task="Go"))
        below = await runtime.read(state.children[0].run_id)

    assert below.started is not None
    assert below.started.limits.max_turns == 3
    assert below.status == "escalated"
    assert state.status == "escalated"
    assert state.turn + state.delegated_turns == 5


async def test_cancelling_the_parent_cancels_the_child(tmp_path: Path) -> None:
    write_agents(tmp_path, "writer")
    cast = Cast({"boss": [ASK], "writer": [("ask_user", {"question": "Well?"})]})

    async with open_team(tmp_path, cast) as runtime:
        state = await runtime.start(RunRequest(task="Go"))
        ended = await runtime.cancel(state.run_id, by="kim")
        below = await runtime.read(state.children[0].run_id)

    assert (ended.status, below.status) == ("canceled", "canceled")


async def test_cancellation_seen_by_the_next_driver_ends_the_child_and_its_approvals(tmp_path: Path) -> None:
    write_agents(tmp_path, "writer", more="tool_approvals:\n  rules:\n    - {tool: pay, verdict: ask}\n")
    cast = Cast({"boss": [ASK], "writer": [("pay", {})]})

    async with open_team(tmp_path, cast, tools=[Deed("pay")]) as runtime:
        state = await runtime.start(RunRequest(task="Get it paid"))
        lease = await runtime.store.take_lease(state.run_id, owner="somebody deaf", seconds=600)
        asked = await runtime.cancel(state.run_id, by="kim")
        await runtime.store.release_lease(lease)
        ended = await runtime.resume(state.run_id)
        below = await runtime.read(state.children[0].run_id)
        still_open = await runtime.approvals.list_all(status="open")

    assert asked.status == "delegating"
    assert (ended.status, below.status) == ("canceled", "canceled")
    assert still_open == []


async def test_cancellation_seen_by_the_next_driver_closes_the_approvals_of_the_run(tmp_path: Path) -> None:
    write_agents(tmp_path, "writer", more="tool_approvals:\n  rules:\n    - {tool: pay, verdict: ask}\n")
    cast = Cast({"writer": [("pay", {})]})

    async with open_team(tmp_path, cast, tools=[Deed("pay")]) as runtime:
        state = await runtime.start(RunRequest(task="Pay", agent="writer"))
        lease = await runtime.store.take_lease(state.run_id, owner="somebody deaf", seconds=600)
        await runtime.cancel(state.run_id, by="kim")
        await runtime.store.release_lease(lease)
        ended = await runtime.resume(state.run_id)
        still_open = await runtime.approvals.list_all(status="open")

    assert ended.status == "canceled"
    assert still_open == []


async def test_child_that_cannot_start_is_a_failed_step(tmp_path: Path) -> None:
    write_agents(tmp_path, "writer")
    write(
        tmp_path, {".agent/agents/writer/AGENT.md": "---\nname: writer\ntools: [nothing]\n---\nYou are the writer.\n"}
    )
    cast = Cast({"boss": [ASK, ("finish", {"result": "alone"})]})

    async with open_team(tmp_path, cast) as runtime:
        state = await runtime.start(RunRequest(task="Go"))

    assert state.result == "alone"
    assert "cannot be used" in find_told(cast.requests[-1])


async def test_signal_stops_the_child_and_the_parent_continues_later(tmp_path: Path) -> None:
    write_agents(tmp_path, "writer")
    stopper = Stopper()

    class Stop(Deed):
        async def execute(self, arguments: dict[str, JsonValue], context: ToolContext) -> ToolResult:
            stopper.request("SIGINT")
            return await super().execute(arguments, context)

    cast = Cast(
        {
            "boss": [ASK, ("finish", {"result": "done"})],
            "writer": [("stop", {}), ("finish", {"result": "the notes"})],
        }
    )

    async with open_team(tmp_path, cast, tools=[Stop("stop", "read")]) as runtime:
        state = await runtime.start(RunRequest(task="Go"), DriveOptions(stopper=stopper))
        below = await runtime.read(state.children[0].run_id)
        ended = await runtime.resume(state.run_id)

    assert state.status == "delegating"
    assert below.pause is not None
    assert below.pause.pause == "signal"
    assert ended.status == "completed"
