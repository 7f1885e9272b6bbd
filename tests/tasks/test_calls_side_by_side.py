"""Concurrent `delegate` calls in one reply start together, each with its own result."""

from pathlib import Path

import pytest
from teams import Call, Cast, Deed, Line, find_told, open_team, write_agents
from test_parallel_children import Meeting, Most

from metier.engine.entries.run import RunPaused
from metier.engine.entries.step import StepFinished
from metier.engine.entries.task import ChildRequested
from metier.engine.journal import read_entries
from metier.messages import ToolResultPart
from metier.runtime.driver import DriveOptions
from metier.runtime.history.replays import replay_run
from metier.runtime.requests import RunRequest

pytestmark = pytest.mark.anyio

DONE: Call = ("finish", {"result": "done"})
MEET: list[Line] = [("meet", {}), ("finish", {"result": "met them"})]


def ask(agent: str, **more: str) -> Call:
    return ("delegate", {"agent": agent, "task": f"Look at {agent}", **more})


async def test_concurrent_calls_run_at_the_same_time_and_each_has_its_result(tmp_path: Path) -> None:
    write_agents(tmp_path, "one", "two", "three")
    cast = Cast({"boss": [[ask("three"), ask("one"), ask("two")], DONE], "one": MEET, "two": MEET, "three": MEET})

    async with open_team(tmp_path, cast, tools=[Meeting(3)], max_turns=30) as runtime:
        state = await runtime.start(RunRequest(task="Look"))
        entries = await read_entries(runtime.store, state.run_id)
        reports = [await replay_run(runtime, run) for run in (state.run_id, *(c.run_id for c in state.children))]

    assert (state.status, [child.agent for child in state.children]) == ("completed", ["three", "one", "two"])
    assert sum(isinstance(entry, RunPaused) for entry in entries) == 1
    assert [entry.order.reads_only for entry in entries if isinstance(entry, ChildRequested)] == [True] * 3
    results = [
        part for message in cast.requests[-1].messages for part in message.parts if isinstance(part, ToolResultPart)
    ]
    assert [(part.call_id, part.text) for part in results] == [
        ("boss-0", "met them"),
        ("boss-0-1", "met them"),
        ("boss-0-2", "met them"),
    ]
    assert [report.outcome.divergence for report in reports] == [None] * 4


async def test_concurrent_calls_are_limited_like_one_call_with_tasks(tmp_path: Path) -> None:
    names = ["a", "b", "c", "d", "e"]
    write_agents(tmp_path, *names)
    cast = Cast(
        {"boss": [[ask(name) for name in names], DONE], **{name: [DONE] for name in names}, "a": MEET, "b": MEET}
    )
    most = Most()

    async with open_team(
        tmp_path, cast, tools=[Meeting(2)], max_children_per_call=3, max_parallel_children=2, max_turns=40
    ) as runtime:
        state = await runtime.start(RunRequest(task="Look"), DriveOptions(sinks=[most]))
        entries = await read_entries(runtime.store, state.run_id)

    assert (state.status, len(state.children), most.seen) == ("completed", 5, 2)
    # Three, then the two that are left: each group waits once, and divides what is left among its children.
    assert sum(isinstance(entry, RunPaused) for entry in entries) == 2
    turns = [entry.order.limits.max_turns for entry in entries if isinstance(entry, ChildRequested)]
    assert turns == [9, 9, 9, 12, 12]


async def test_results_keep_the_order_of_the_calls(tmp_path: Path) -> None:
    write_agents(tmp_path, "one", "two")
    look = Deed("look", "read")
    pay = Deed("pay")
    lines: list[Line] = [("pay", {}), ("finish", {"result": "paid"})]
    cast = Cast({"boss": [[ask("one"), ("look", {}), ask("two")], DONE], "one": lines, "two": lines})

    async with open_team(tmp_path, cast, tools=[look, pay], max_turns=30) as runtime:
        state = await runtime.start(RunRequest(task="Look"))
        entries = await read_entries(runtime.store, state.run_id)

    steps = [entry.step_id for entry in entries if isinstance(entry, StepFinished)]
    assert (state.status, steps) == ("completed", ["1.1", "1.2", "1.3"])
    assert len(pay.ran) == 2  # alone, each has the authority that it had


async def test_concurrent_calls_in_one_folder_are_read_only_unless_one_has_a_worktree(tmp_path: Path) -> None:
    write_agents(tmp_path, "one", "two")
    lines: list[Line] = [("pay", {}), ("finish", {"result": "tried"})]
    orders: list[list[tuple[bool, bool]]] = []
    for calls in ([ask("one"), ask("two")], [ask("one"), ask("two", isolation="worktree")]):
        cast = Cast({"boss": [calls, DONE], "one": lines, "two": lines})
        async with open_team(tmp_path, cast, tools=[Deed("pay")], max_turns=30) as runtime:
            state = await runtime.start(RunRequest(task="Look"))
            entries = await read_entries(runtime.store, state.run_id)
        asked = [entry.order for entry in entries if isinstance(entry, ChildRequested)]
        orders.append([(order.reads_only, order.worktree) for order in asked])

    assert orders == [[(True, False), (True, False)], [(False, False), (False, True)]]


async def test_concurrent_calls_are_asked_about_in_one_pause(tmp_path: Path) -> None:
    write_agents(tmp_path, "one", "two")
    rules = tmp_path / ".agent" / "policy.yaml"
    rules.write_text("tool_approvals:\n  rules:\n    - {tool: delegate, verdict: ask}\n")
    cast = Cast({"boss": [[ask("one"), ask("two")], DONE], "one": [("finish", {"result": "a"})], "two": [DONE]})

    async with open_team(tmp_path, cast, max_turns=30) as runtime:
        state = await runtime.start(RunRequest(task="Look"))
        questions = await runtime.approvals.list_all(status="open")
        for question in questions:
            await runtime.store.decide_approval(question.row.approval_id, status="approved", decided_by="kim")
        ended = await runtime.resume(state.run_id)

    assert len(questions) == 2
    assert ended.status == "completed"
    assert "a" in find_told(cast.requests[-1])


async def test_guarded_run_starts_read_only_children_without_approval(tmp_path: Path) -> None:
    write_agents(tmp_path, "one", "two")
    many: Call = ("delegate", {"tasks": [{"agent": "one", "task": "Look"}, {"agent": "two", "task": "Look"}]})
    replies: list[list[Call]] = [[ask("one"), ask("two")], [many]]
    for calls in replies:
        cast = Cast({"boss": [calls, DONE], "one": [DONE], "two": [DONE]})
        async with open_team(tmp_path, cast, max_turns=30, profile="guarded") as runtime:
            state = await runtime.start(RunRequest(task="Look"))
            entries = await read_entries(runtime.store, state.run_id)
            report = await replay_run(runtime, state.run_id)

        assert state.status == "completed"
        assert [entry.order.reads_only for entry in entries if isinstance(entry, ChildRequested)] == [True, True]
        assert report.outcome.divergence is None


async def test_guarded_run_asks_before_it_starts_a_child_with_write_access(tmp_path: Path) -> None:
    write_agents(tmp_path, "one", "two")
    for calls in ([ask("one")], [ask("one"), ask("two", isolation="worktree")]):
        cast = Cast({"boss": [calls, DONE], "one": [DONE], "two": [DONE]})
        async with open_team(tmp_path, cast, max_turns=30, profile="guarded") as runtime:
            state = await runtime.start(RunRequest(task="Look"))
            questions = await runtime.approvals.list_all(status="open")

        assert state.pause is not None
        assert (state.pause.pause, len(questions) > 0, len(state.children)) == ("approval", True, 0)


async def test_ask_rule_for_delegation_covers_read_only_children(tmp_path: Path) -> None:
    write_agents(tmp_path, "one", "two")
    rules = tmp_path / ".agent" / "policy.yaml"
    rules.write_text("tool_approvals:\n  rules:\n    - {tool: delegate, verdict: ask}\n")
    cast = Cast({"boss": [[ask("one"), ask("two")], DONE], "one": [DONE], "two": [DONE]})

    async with open_team(tmp_path, cast, max_turns=30, profile="guarded") as runtime:
        await runtime.start(RunRequest(task="Look"))
        questions = await runtime.approvals.list_all(status="open")

    assert len(questions) == 2
