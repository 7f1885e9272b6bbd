"""One call that starts several concurrent runs with budget shares and results in call order."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import anyio
import pytest
from pydantic import JsonValue
from teams import Call, Cast, Deed, Line, find_told, open_team, write_agents

from metier.engine.entries.run import RunPaused
from metier.engine.entries.task import ChildEnded, ChildRequested
from metier.engine.journal import read_entries
from metier.events.record import EventRecord
from metier.ids import CHILD
from metier.runtime.answers import Answer
from metier.runtime.approval_questions import ApprovalQuestion, Reply
from metier.runtime.driver import DriveOptions
from metier.runtime.history.replays import replay_run
from metier.runtime.queue.detached import drive_for_a_while, wake_decided
from metier.runtime.requests import RunRequest
from metier.testing.recorded_effect import describe_effect
from metier.tools.base import ToolContext, ToolInfo, ToolResult

pytestmark = pytest.mark.anyio

ASK_LOOK = "tool_approvals:\n  rules:\n    - {tool: look, verdict: ask}\n"
ALLOW_MEET = "    - {tool: meet, allow: true}\n"
DONE: Call = ("finish", {"result": "done"})


def ask(*agents: str) -> Call:
    return ("delegate", {"tasks": [{"agent": agent, "task": f"Look at {agent}"} for agent in agents]})


@dataclass
class Meeting:
    """A tool that returns when the expected number of concurrent calls is reached."""

    wanted: int
    order: list[str] = field(default_factory=list[str])
    _all_here: anyio.Event = field(default_factory=anyio.Event)

    @property
    def info(self) -> ToolInfo:
        return describe_effect("meet", "read")

    async def execute(self, arguments: dict[str, JsonValue], context: ToolContext) -> ToolResult:
        del arguments
        self.order.append(context.run_id)
        if len(self.order) == self.wanted:
            self._all_here.set()
        with anyio.fail_after(100):
            await self._all_here.wait()
        return ToolResult(ok=True, output="met")


def build_cast(**lines: Sequence[Line]) -> Cast:
    return Cast(lines)


async def test_children_of_one_call_run_concurrently_and_answer_in_call_order(tmp_path: Path) -> None:
    write_agents(tmp_path, "one", "two", "three")
    met: list[Call] = [("meet", {})]
    cast = build_cast(
        boss=[ask("three", "one", "two"), DONE],
        one=[*met, ("finish", {"result": "first"})],
        two=[*met, ("finish", {"result": "second"})],
        three=[*met, ("meet", {}), ("finish", {"result": "third"})],
    )

    async with open_team(tmp_path, cast, tools=[Meeting(3)], max_turns=30) as runtime:
        state = await runtime.start(RunRequest(task="Look"))
        entries = await read_entries(runtime.store, state.run_id)

    told = find_told(cast.requests[-1])
    assert (state.status, state.result) == ("completed", "done")
    assert [child.agent for child in state.children] == ["three", "one", "two"]
    assert [child.status for child in state.children] == ["completed"] * 3
    assert told.index("third") < told.index("first") < told.index("second")
    assert "[1 of 3: three]" in told
    assert [entry.step_id for entry in entries if isinstance(entry, ChildEnded)] == ["1.1", "1.2", "1.3"]
    assert sum(isinstance(entry, RunPaused) for entry in entries) == 1


async def test_parent_and_children_replay_equal(tmp_path: Path) -> None:
    write_agents(tmp_path, "one", "two")
    cast = build_cast(
        boss=[ask("one", "nobody-here", "two"), DONE],
        one=[("pay", {}), ("finish", {"result": "first"})],
        two=[("finish", {"result": "second"})],
    )

    async with open_team(tmp_path, cast, tools=[Deed("pay")], max_turns=30) as runtime:
        state = await runtime.start(RunRequest(task="Look"))
        reports = [await replay_run(runtime, run) for run in (state.run_id, *(c.run_id for c in state.children))]
        rows = await runtime.store.list_runs()

    assert state.status == "completed"
    assert [report.outcome.divergence for report in reports] == [None, None, None]
    assert len(rows) == 3
    assert "There is no agent 'nobody-here'" in find_told(cast.requests[-1])


async def test_several_children_are_read_only(tmp_path: Path) -> None:
    allowed = "".join(f"    - {{tool: {name}, allow: true}}\n" for name in ("pay", "delegate", "WebSearch"))
    allow = f"tool_approvals:\n  rules:\n{allowed}"
    write_agents(tmp_path, "one", "two", "deep", more=allow)
    hand_on: Call = ("delegate", {"agent": "deep", "task": "Pay for me"})
    cast = build_cast(
        boss=[ask("one", "two"), DONE],
        one=[("pay", {}), ("WebSearch", {"query": "prices"}), ("finish", {"result": "tried"})],
        two=[hand_on, ("finish", {"result": "handed on"})],
        deep=[("pay", {}), ("finish", {"result": "tried too"})],
    )
    pay, look, search = Deed("pay"), Deed("look", "read"), Deed("WebSearch", "idempotent")

    async with open_team(tmp_path, cast, tools=[pay, look, search], max_turns=60) as runtime:
        state = await runtime.start(RunRequest(task="Pay"))
        entries = [
            entry for row in await runtime.store.list_runs() for entry in await read_entries(runtime.store, row.run_id)
        ]

    offered = [{tool.name for tool in request.tools} for request in cast.requests]
    assert state.status == "completed"
    assert pay.ran == []
    assert len(search.ran) == 1
    assert "pay" in offered[0]
    assert all("pay" not in names and "Bash" not in names and "Write" not in names for names in offered[1:-1])
    assert all({"look", "Read", "WebFetch"} <= names for names in offered)
    orders = [entry.order for entry in entries if isinstance(entry, ChildRequested)]
    assert sorted((order.agent, order.reads_only) for order in orders) == [
        ("deep", False),
        ("one", True),
        ("two", True),
    ]


async def test_single_child_keeps_its_permissions(tmp_path: Path) -> None:
    write_agents(tmp_path, "one")
    cast = build_cast(
        boss=[("delegate", {"agent": "one", "task": "Pay"}), DONE],
        one=[("pay", {}), ("finish", {"result": "paid"})],
    )
    pay = Deed("pay")

    async with open_team(tmp_path, cast, tools=[pay]) as runtime:
        state = await runtime.start(RunRequest(task="Pay"))

    assert state.status == "completed"
    assert len(pay.ran) == 1


async def test_each_child_gets_a_share_of_the_remaining_budget(tmp_path: Path) -> None:
    write_agents(tmp_path, "one", "two", "three")
    finish: list[Call] = [("finish", {"result": "x"})]
    cast = build_cast(boss=[ask("one", "two", "three"), DONE], one=finish, two=finish, three=finish)

    async with open_team(tmp_path, cast, max_turns=25, max_cost_usd=9.0) as runtime:
        state = await runtime.start(RunRequest(task="Look"))
        orders = [
            entry.order
            for entry in await read_entries(runtime.store, state.run_id)
            if isinstance(entry, ChildRequested)
        ]

    # Three quarters of the 24 turns that are left, for three.
    assert [order.limits.max_turns for order in orders] == [6, 6, 6]
    costs = [order.limits.max_cost_usd for order in orders]
    assert all(cost is not None and 2.2 < cost <= 2.25 for cost in costs)
    assert state.delegated_turns == 3


async def test_call_for_too_many_children_starts_none_and_returns_the_reason(tmp_path: Path) -> None:
    write_agents(tmp_path, "one")
    cast = build_cast(boss=[ask("one", "one", "one"), DONE], one=[("finish", {"result": "x"})])

    async with open_team(tmp_path, cast, max_turns=20, max_children_per_call=2) as runtime:
        state = await runtime.start(RunRequest(task="Look"))
        rows = await runtime.store.list_runs()

    assert state.status == "completed"
    assert len(rows) == 1
    assert "One call may start 2 child runs, this one asks for 3" in find_told(cast.requests[-1])


async def test_number_of_concurrent_children_is_limited_by_the_setting(tmp_path: Path) -> None:
    write_agents(tmp_path, "one", "two", "three", "four")
    meet: list[Call] = [("meet", {}), ("finish", {"result": "x"})]
    cast = build_cast(boss=[ask("one", "two", "three", "four"), DONE], one=meet, two=meet, three=meet, four=meet)
    meeting = Meeting(2)
    most = Most()

    async with open_team(tmp_path, cast, tools=[meeting], max_turns=60, max_parallel_children=2) as runtime:
        state = await runtime.start(RunRequest(task="Look"), DriveOptions(sinks=[most]))

    assert state.status == "completed"
    assert most.seen == 2


@dataclass
class Most:
    """A counter of concurrent child runs."""

    open: set[str] = field(default_factory=set[str])
    seen: int = 0

    def write(self, record: EventRecord) -> None:
        if record.run_id.startswith(CHILD) and record.event_type == "run_started":
            self.open.add(record.run_id)
            self.seen = max(self.seen, len(self.open))
        if record.event_type in ("run_finished", "run_failed"):
            self.open.discard(record.run_id)

    def close(self) -> None:
        return None


async def test_approval_in_one_child_does_not_block_the_others(tmp_path: Path) -> None:
    write_agents(tmp_path, "one", "three")
    write_agents(tmp_path, "two", more=ASK_LOOK)
    cast = build_cast(
        boss=[ask("one", "two", "three"), DONE],
        one=[("finish", {"result": "first"})],
        two=[("look", {}), ("finish", {"result": "second"})],
        three=[("ask_user", {"question": "Which?"}), ("finish", {"result": "third"})],
    )
    look = Deed("look", "read")

    async with open_team(tmp_path, cast, tools=[look], max_turns=30) as runtime:
        state = await runtime.start(RunRequest(task="Look"))
        waiting = await runtime.list_all_waiting(state)
        ended_first = await runtime.read(state.children[0].run_id)
        (question,) = await runtime.approvals.list_all(status="open")
        await runtime.store.decide_approval(question.row.approval_id, status="approved", decided_by="kim")
        after_yes = await runtime.resume(state.run_id)
        asked = await runtime.get_waiting(after_yes)
        ended = await runtime.resume(state.run_id, Answer(values={"answer": "that"}, by="kim"))
        rows = await runtime.store.list_runs()

    assert state.status == "delegating"
    assert [each.pause.pause for each in waiting if each.pause] == ["approval", "input"]
    assert ended_first.status == "completed"
    assert after_yes.status == "delegating"
    assert asked.status == "input_required"
    assert (ended.status, ended.result) == ("completed", "done")
    assert len(look.ran) == 1
    assert len(rows) == 4
    told = find_told(cast.requests[-1])
    assert told.index("first") < told.index("second") < told.index("third")


async def test_user_at_the_terminal_is_asked_one_question_at_a_time(tmp_path: Path) -> None:
    write_agents(tmp_path, "one", "two", more=ASK_LOOK + ALLOW_MEET)
    lines: list[Call] = [("meet", {}), ("look", {}), ("finish", {"result": "x"})]
    cast = build_cast(boss=[ask("one", "two"), DONE], one=lines, two=lines)
    look, meeting = Deed("look", "read"), Meeting(2)
    open_now, most = 0, 0

    async def answer(question: ApprovalQuestion) -> Reply | None:
        nonlocal open_now, most
        del question
        open_now += 1
        most = max(most, open_now)
        for _ in range(20):
            await anyio.lowlevel.checkpoint()
        open_now -= 1
        return Reply(decision="approved", by="kim")

    async with open_team(tmp_path, cast, tools=[look, meeting], max_turns=30) as runtime:
        state = await runtime.start(RunRequest(task="Look"), DriveOptions(ask=answer))

    assert state.status == "completed"
    assert len(look.ran) == 2
    assert most == 1


async def test_cancelling_the_parent_ends_every_child(tmp_path: Path) -> None:
    write_agents(tmp_path, "one", "two")
    asks: list[Call] = [("ask_user", {"question": "Which?"}), ("finish", {"result": "x"})]
    cast = build_cast(boss=[ask("one", "two"), DONE], one=asks, two=asks)

    async with open_team(tmp_path, cast, max_turns=30) as runtime:
        state = await runtime.start(RunRequest(task="Look"))
        await runtime.cancel(state.run_id, by="kim")
        rows = await runtime.store.list_runs()

    assert [row.status for row in rows] == ["canceled"] * 3


async def test_children_that_need_approval_are_asked_about_and_started_together(tmp_path: Path) -> None:
    write_agents(tmp_path, "one", "two")
    write_agents(tmp_path, "lead", more="tool_approvals:\n  rules:\n    - {tool: delegate, verdict: ask}\n")
    meet: list[Call] = [("finish", {"result": "x"})]
    cast = build_cast(lead=[ask("one", "two"), DONE], one=meet, two=meet)

    async with open_team(tmp_path, cast, max_turns=30) as runtime:
        state = await runtime.start(RunRequest(task="Look", agent="lead"))
        questions = await runtime.approvals.list_all(status="open")
        for number, question in enumerate(questions):
            status = "denied" if number else "approved"
            await runtime.store.decide_approval(question.row.approval_id, status=status, decided_by="kim")
        ended = await runtime.resume(state.run_id)
        report = await replay_run(runtime, state.run_id)

    assert len(questions) == 2
    assert ended.status == "completed"
    assert len(ended.children) == 1
    assert report.outcome.divergence is None


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"agent": "one"}, "'task' missing"),
        ({"agent": "one", "task": "x", "tasks": [{"agent": "one", "task": "y"}]}, "not both"),
        ({"tasks": []}, "tasks"),
        ({"tasks": [{"agent": "one"}]}, "task"),
    ],
)
async def test_call_with_missing_or_extra_arguments_returns_the_errors(
    tmp_path: Path, arguments: dict[str, JsonValue], said: str
) -> None:
    write_agents(tmp_path, "one")
    cast = build_cast(boss=[("delegate", arguments), DONE])

    async with open_team(tmp_path, cast) as runtime:
        await runtime.start(RunRequest(task="Look"))

    assert said in find_told(cast.requests[-1])


async def test_worker_continues_an_approved_child_while_another_still_waits(
    tmp_path: Path,
) -> None:
    write_agents(tmp_path, "one", "two", more=ASK_LOOK)
    looks: list[Call] = [("look", {}), ("finish", {"result": "looked"})]
    cast = build_cast(boss=[ask("one", "two"), DONE], one=looks, two=looks)
    look = Deed("look", "read")

    async with open_team(tmp_path, cast, tools=[look], max_turns=30) as runtime:
        state = await runtime.start(RunRequest(task="Look"), queue="agent")
        assert await wake_decided(runtime, "agent") == []
        second = state.children[1].run_id
        (open_one,) = await runtime.store.list_approvals(run_id=second, status="open")
        await runtime.store.decide_approval(open_one.approval_id, status="approved", decided_by="kim")

        woken = await wake_decided(runtime, "agent")
        after = await drive_for_a_while(runtime, state.run_id, runtime.host.settings.worker, watch=DriveOptions())
        statuses = [(await runtime.read(child.run_id)).status for child in state.children]
        again = await wake_decided(runtime, "agent")

    assert woken == [state.run_id]
    assert after.status == "delegating"
    assert statuses == ["paused", "completed"]
    assert len(look.ran) == 1
    assert again == []
