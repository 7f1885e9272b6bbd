"""Task runs: ordered steps, inputs and earlier results in bodies, and continuation after a failure."""

import json
from pathlib import Path

import pytest
from pydantic import JsonValue
from teams import Call, Cast, Deed, find_told, open_team, write, write_agents

from metier.engine.projection import list_task_steps
from metier.engine.state.run_state import RunState
from metier.errors import ConfigError, UsageError
from metier.events.task import TaskStepChanged
from metier.runtime.answers import Answer
from metier.runtime.child_runs import request_task
from metier.runtime.history.replays import replay_run
from metier.runtime.requests import RunRequest
from metier.runtime.runs import Runtime
from metier.telemetry.jsonl import read_events
from metier.tools.base import ToolContext, ToolResult

pytestmark = pytest.mark.anyio

TASK = """\
---
name: Release notes
description: Collect, then write.
agent: clerk
inputs:
  - name: topic
    description: What about
  - name: tone
    default: dry
next: 02-write.md
---

Collect about {{inputs.topic}}.
"""
WRITE = """\
---
name: Write
agent: writer
---

Write in a {{ inputs.tone }} tone from: {{steps.TASK.result}}
"""


def build(folder: Path, *, first: str = TASK, second: str = WRITE) -> Path:
    write_agents(folder, "clerk", "writer")
    return write(folder, {".agent/tasks/notes/TASK.md": first, ".agent/tasks/notes/02-write.md": second})


def finish(result: str) -> Call:
    return ("finish", {"result": result})


async def start(runtime: Runtime, task: str = "notes", **inputs: str) -> RunState:
    return await runtime.start(request_task(runtime.host, task, dict(inputs)))


def states(state: RunState) -> list[tuple[str, str]]:
    return [(step.file, step.state) for step in list_task_steps(state)]


async def test_steps_run_in_order_with_inputs_and_earlier_results(tmp_path: Path) -> None:
    build(tmp_path)
    cast = Cast({"clerk": [finish("three commits")], "writer": [finish("the notes")]})

    async with open_team(tmp_path, cast) as runtime:
        state = await start(runtime, topic="the weather")
        reports = [await replay_run(runtime, run) for run in (state.run_id, *(c.run_id for c in state.children))]
        events = list(read_events(runtime.folder(state.run_id) / "events.jsonl"))

    assert (state.status, state.result) == ("completed", "the notes")
    assert find_told(cast.requests[0]).partition("\n# Environment")[0] == "Collect about the weather."
    assert "# This step\n\nWrite in a dry tone from: three commits" in find_told(cast.requests[1])
    assert find_told(cast.requests[1]).startswith("Collect about the weather.")
    assert states(state) == [("TASK.md", "succeeded"), ("02-write.md", "succeeded")]
    payloads = [event.payload for event in events]
    changes = [(each.file, each.state) for each in payloads if isinstance(each, TaskStepChanged)]
    assert changes == [
        ("TASK.md", "running"),
        ("TASK.md", "succeeded"),
        ("02-write.md", "running"),
        ("02-write.md", "succeeded"),
    ]
    assert all(report.outcome.divergence is None for report in reports)


async def test_value_that_looks_like_a_placeholder_is_not_replaced(tmp_path: Path) -> None:
    build(tmp_path)
    cast = Cast({"clerk": [finish("{{inputs.topic}} {{steps.TASK.result}}")], "writer": [finish("x")]})

    async with open_team(tmp_path, cast) as runtime:
        await start(runtime, topic="{{inputs.tone}}")

    assert find_told(cast.requests[0]).partition("\n# Environment")[0] == "Collect about {{inputs.tone}}."
    assert "from: {{inputs.topic}} {{steps.TASK.result}}" in find_told(cast.requests[1])


async def test_missing_input_is_reported_before_the_start(tmp_path: Path) -> None:
    build(tmp_path)

    async with open_team(tmp_path, Cast({})) as runtime:
        with pytest.raises(UsageError, match=r"input 'topic' is missing \(What about\)"):
            await start(runtime)
        with pytest.raises(UsageError, match="there is no input 'topics'"):
            await start(runtime, topics="x", topic="y")
        rows = await runtime.store.list_runs()

    assert rows == []


@pytest.mark.parametrize(
    ("body", "line", "message"),
    [
        ("{{inputs.color}}", 6, "Input 'color' is not declared"),
        ("\n{{steps.03-none.result}}", 7, "The task has no step '03-none'"),
        ("{{steps.02-write.md.result}}", 6, "Step '02-write' does not come before this one, so it has no result yet"),
        ("{{steps.TASK}}", 6, "'{{steps.TASK}}' is no placeholder"),
    ],
)
async def test_placeholder_without_a_value_is_an_error_with_its_line(
    tmp_path: Path, body: str, line: int, message: str
) -> None:
    build(tmp_path, second=f"---\nname: Write\nagent: writer\n---\n\n{body}\n")

    async with open_team(tmp_path, Cast({})) as runtime:
        with pytest.raises(ConfigError) as caught:
            await start(runtime, topic="x")

    (problem,) = caught.value.problems
    assert f"02-write.md:{line}:" in problem.render()
    assert message in problem.render()


async def test_failed_task_can_continue_at_the_failed_step(tmp_path: Path) -> None:
    build(tmp_path)
    cast = Cast({"clerk": [finish("three commits")], "writer": [("look", {"at": n}) for n in range(3)]})

    async with open_team(tmp_path, cast, tools=[Deed("look", "read")], max_turns=2) as runtime:
        state = await start(runtime, topic="x")
        cast.lines = {"writer": [finish("the notes")]}
        ended = await runtime.resume(state.run_id)
        report = await replay_run(runtime, state.run_id)

    assert state.pause is not None
    assert state.pause.pause == "step_failed"
    assert "02-write.md" in state.pause.reason
    assert states(state) == [("TASK.md", "succeeded"), ("02-write.md", "failed")]
    assert (ended.status, ended.result) == ("completed", "the notes")
    assert "three commits" in find_told(cast.requests[-1])
    assert [child.status for child in ended.children] == ["completed", "escalated", "completed"]
    assert report.outcome.divergence is None


async def test_failed_step_can_be_skipped(tmp_path: Path) -> None:
    build(tmp_path)
    cast = Cast({"clerk": [("look", {})], "writer": [finish("without it")]})

    async with open_team(tmp_path, cast, tools=[Deed("look", "read")], max_turns=1) as runtime:
        state = await start(runtime, topic="x")
        ended = await runtime.resume(state.run_id, Answer(doubt="skip", by="kim"))

    assert states(state) == [("TASK.md", "failed"), ("02-write.md", "pending")]
    assert states(ended) == [("TASK.md", "skipped"), ("02-write.md", "succeeded")]
    assert "from: (this step was skipped)" in find_told(cast.requests[-1])


async def test_changed_files_do_not_affect_a_started_task(tmp_path: Path) -> None:
    build(tmp_path)
    cast = Cast({"clerk": [("ask_user", {"question": "Sure?"}), finish("three commits")], "writer": [finish("x")]})

    async with open_team(tmp_path, cast) as runtime:
        state = await start(runtime, topic="x")
        write(tmp_path, {".agent/tasks/notes/02-write.md": "---\nname: Other\n---\n\nSomething else\n"})
        ended = await runtime.resume(state.run_id, Answer(values={"answer": "yes"}))

    assert ended.status == "completed"
    assert "Write in a dry tone" in find_told(cast.requests[-1])


async def test_result_is_validated_against_its_schema_with_one_repair(tmp_path: Path) -> None:
    schema = "output_schema:\n  type: object\n  required: [title]\n  properties:\n    title: {type: string}\n"
    build(tmp_path, second=f"---\nname: Write\nagent: writer\n{schema}---\n\nWrite.\n")
    good = json.dumps({"title": "Notes"})
    cast = Cast({"clerk": [finish("x")], "writer": [finish("no JSON"), finish(good)]})

    async with open_team(tmp_path, cast) as runtime:
        state = await start(runtime, topic="x")
        report = await replay_run(runtime, state.children[1].run_id)

    assert (state.status, state.result) == ("completed", good)
    assert "The result is JSON by this schema" in find_told(cast.requests[1])
    assert "Not accepted:\n- The result must be JSON" in find_told(cast.requests[2])
    assert report.outcome.divergence is None


async def test_second_invalid_result_fails_the_step(tmp_path: Path) -> None:
    schema = "output_schema: {type: object, required: [title]}\n"
    build(tmp_path, second=f"---\nname: Write\nagent: writer\n{schema}---\n\nWrite.\n")
    cast = Cast({"clerk": [finish("x")], "writer": [finish("{}"), finish("[]")]})

    async with open_team(tmp_path, cast) as runtime:
        state = await start(runtime, topic="x")
        below = await runtime.read(state.children[1].run_id)

    assert states(state)[1] == ("02-write.md", "failed")
    assert below.failure is not None
    assert below.failure.reason == "not_accepted"


async def test_criteria_are_shown_and_checked_if_possible(tmp_path: Path) -> None:
    criteria = """\
acceptance:
  - The notes are short
  - file: out.md
    contains: "# Notes"
  - command: test -d .agent
tool_approvals:
  rules:
    - tool: Bash
      when: {command: {equals: test -d .agent}}
      allow: true
    - {tool: put, allow: true}
"""
    build(tmp_path, second=f"---\nname: Write\nagent: writer\n{criteria}---\n\nWrite.\n")

    class Put(Deed):
        async def execute(self, arguments: dict[str, JsonValue], context: ToolContext) -> ToolResult:
            (context.workspace / "out.md").write_text("# Notes\n")
            return await super().execute(arguments, context)

    cast = Cast({"clerk": [finish("x")], "writer": [finish("done"), ("put", {}), finish("now")]})

    async with open_team(tmp_path, cast, tools=[Put("put")]) as runtime:
        state = await start(runtime, topic="x")

    assert (state.status, state.result) == ("completed", "now")
    told = find_told(cast.requests[1])
    assert "- The notes are short" in told
    assert "the file out.md contains '# Notes'" in told
    assert "No such file or directory" in find_told(cast.requests[2])
    assert "exit code" not in find_told(cast.requests[2]).split("Not accepted")[1]


async def test_rules_of_task_and_step_restrict_the_agent(tmp_path: Path) -> None:
    rules = "tool_approvals:\n  rules:\n    - {tool: pay, allow: false, reason: not here}\n"
    build(tmp_path, second=f"---\nname: Write\nagent: writer\n{rules}---\n\nWrite.\n")
    pay = Deed("pay")
    cast = Cast({"clerk": [finish("x")], "writer": [("pay", {}), finish("done")]})

    async with open_team(tmp_path, cast, tools=[pay]) as runtime:
        state = await start(runtime, topic="x")

    assert state.status == "completed"
    assert pay.ran == []
    assert "Rule 1 of step 'Write' denies this call: not here" in find_told(cast.requests[-1])


async def test_step_asks_before_effects_if_no_rule_matches(tmp_path: Path) -> None:
    build(tmp_path)
    pay = Deed("pay")
    cast = Cast({"clerk": [("pay", {}), finish("x")], "writer": [finish("done")]})

    async with open_team(tmp_path, cast, tools=[pay]) as runtime:
        state = await start(runtime, topic="x")
        waiting = await runtime.get_waiting(state)
        (question,) = await runtime.approvals.list_all(status="open")
        await runtime.store.decide_approval(question.row.approval_id, status="approved", decided_by="kim")
        ended = await runtime.resume(state.run_id)

    assert state.status == "delegating"
    assert waiting.pause is not None
    assert waiting.pause.pause == "approval"
    assert ended.status == "completed"
    assert len(pay.ran) == 1


async def test_step_has_only_the_tools_on_its_list(tmp_path: Path) -> None:
    build(tmp_path, second="---\nname: Write\nagent: writer\ntools: [look]\n---\n\nWrite.\n")
    cast = Cast({"clerk": [finish("x")], "writer": [finish("done")]})

    async with open_team(tmp_path, cast, tools=[Deed("pay"), Deed("look", "read")]) as runtime:
        await start(runtime, topic="x")

    assert {"pay", "look"} <= {tool.name for tool in cast.requests[0].tools}
    assert {tool.name for tool in cast.requests[1].tools} == {"look", "ask_user", "finish"}


async def test_agent_can_run_a_task_as_a_tool_and_a_task_cannot_run_itself(tmp_path: Path) -> None:
    build(tmp_path)
    again: Call = ("run_task", {"task": "notes", "inputs": {"topic": "again"}})
    cast = Cast(
        {
            "boss": [("run_task", {"task": "notes", "inputs": {"topic": "tides"}}), finish("all done")],
            "clerk": [again, finish("three commits")],
            "writer": [finish("the notes")],
        }
    )

    async with open_team(tmp_path, cast, max_turns=20) as runtime:
        state = await runtime.start(RunRequest(task="Get the notes"))
        rows = await runtime.store.list_runs()
        report = await replay_run(runtime, state.run_id)

    assert state.status == "completed"
    assert len(rows) == 4
    assert "the notes" in find_told(cast.requests[-1])
    assert "run_task" not in {tool.name for tool in cast.requests[1].tools}
    assert report.outcome.divergence is None


async def test_invalid_task_inputs_are_reported_to_the_model(tmp_path: Path) -> None:
    build(tmp_path)
    cast = Cast({"boss": [("run_task", {"task": "notes"}), finish("gave up")]})

    async with open_team(tmp_path, cast) as runtime:
        state = await runtime.start(RunRequest(task="Get the notes"))

    assert state.result == "gave up"
    assert "Task 'notes' cannot be run: input 'topic' is missing (What about)" in find_told(cast.requests[-1])


async def test_cost_of_the_steps_adds_up_to_the_cost_of_the_task_and_is_limited(tmp_path: Path) -> None:
    build(tmp_path)
    cast = Cast({"clerk": [finish("x")], "writer": [finish("y")]})

    async with open_team(tmp_path, cast) as runtime:
        state = await start(runtime, topic="x")
        below = [await runtime.read(child.run_id) for child in state.children]

    assert state.input_tokens == sum(child.input_tokens for child in below) == 200
