"""Runs from Python: results, values, approvals, questions, events. The model is scripted; everything else is real."""

import json
import logging
import traceback
from pathlib import Path
from typing import Annotated, Literal

import anyio
import pytest
from pydantic import BaseModel, Field, field_validator

import metier
from metier.testing.scripted import ScriptedProvider, ToolCall, calls, says

pytestmark = pytest.mark.anyio

GUARDED = {"runtime.profile": "guarded"}


@metier.tool(effect="read", risk="low")
def look_up(city: Annotated[str, Field(description="A city")], days: int = 1) -> list[str]:
    """Tell the weather.

    The model does not read this paragraph.
    """
    return [f"{city} day {day}: sunny" for day in range(1, days + 1)]


class Weather(BaseModel):
    city: str
    degrees: int

    @field_validator("degrees")
    @classmethod
    def _check(cls, degrees: int) -> int:
        if degrees > 60:
            raise ValueError("too hot to be true")
        return degrees


async def test_a_run_returns_status_text_usage_cost_and_files(folder: Path) -> None:
    provider = ScriptedProvider(says("Good morning."))

    async with metier.open(folder, provider=provider) as agent:
        result = await agent.run("Greet")

    assert result.ok
    assert (result.status, result.text, result.turns) == ("completed", "Good morning.", 1)
    assert result.usage == metier.Usage(100, 10)
    assert result.cost is None
    assert result.value is None
    assert (result.folder / "events.jsonl").is_file()
    assert result.raise_for_status() is result


async def test_a_typed_function_is_a_tool_that_the_model_calls_with_converted_arguments(folder: Path) -> None:
    provider = ScriptedProvider(calls(ToolCall("look_up", {"city": "Oslo", "days": 2})), says("Sunny."))

    async with metier.open(folder, provider=provider, tools=[look_up]) as agent:
        result = await agent.run("How is the weather?")

    spec = next(each for each in provider.requests[0].tools if each.name == "look_up")
    assert spec.description == "Tell the weather."
    assert spec.input_schema == {
        "additionalProperties": False,
        "properties": {
            "city": {"description": "A city", "type": "string"},
            "days": {"default": 1, "type": "integer"},
        },
        "required": ["city"],
        "type": "object",
    }
    assert "Oslo day 2: sunny" in str(provider.requests[1].messages)
    assert result.text == "Sunny."
    assert look_up("Bergen") == ["Bergen day 1: sunny"]


async def test_files_created_by_a_tool_are_in_the_result_of_the_run(folder: Path) -> None:
    @metier.tool(effect="keyed", risk="low")
    def draw(name: str, context: metier.ToolContext) -> str:
        """Draw a picture."""
        assert context.artifacts is not None
        file = context.artifacts / "pictures" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text("a house", encoding="utf-8")
        return f"drew {name}"

    provider = ScriptedProvider(
        calls(ToolCall("draw", {"name": "b.txt"}), ToolCall("draw", {"name": "a.txt"})), says("Done.")
    )

    async with metier.open(folder, provider=provider, tools=[draw]) as agent:
        result = await agent.run("Draw two pictures")

    assert result.ok
    pictures = result.folder / "artifacts" / "pictures"
    assert result.artifacts == (pictures / "a.txt", pictures / "b.txt")
    assert result.artifacts[0].read_text(encoding="utf-8") == "a house"


@pytest.mark.parametrize(
    ("effect", "risk", "asks"), [("read", "low", False), ("read", "high", True), ("keyed", "low", True)]
)
async def test_effect_and_risk_of_a_function_determine_whether_its_call_needs_approval(
    folder: Path, effect: Literal["read", "keyed"], risk: Literal["low", "high"], asks: bool
) -> None:
    @metier.tool(effect=effect, risk=risk)
    def ring() -> str:
        """Ring the bell."""
        return "rang"

    provider = ScriptedProvider(calls(ToolCall("ring")), says("It rang."))

    async with metier.open(folder, provider=provider, tools=[ring], settings=GUARDED) as agent:
        result = await agent.run("Ring")

    assert [(each.tool, each.risk) for each in result.approvals] == ([("ring", risk)] if asks else [])
    assert result.status == ("paused" if asks else "completed")


async def test_the_value_has_the_requested_type(folder: Path) -> None:
    provider = ScriptedProvider(says('{"city": "Oslo", "degrees": 21}'))

    async with metier.open(folder, provider=provider) as agent:
        result = await agent.run("How is the weather?", output_schema=Weather)

    assert result.value == Weather(city="Oslo", degrees=21)


async def test_a_json_schema_returns_plain_json(folder: Path) -> None:
    schema = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
    provider = ScriptedProvider(says('{"city": "Oslo"}'))

    async with metier.open(folder, provider=provider) as agent:
        result = await agent.run("Where?", output_schema=schema)

    assert result.value == {"city": "Oslo"}


async def test_an_invalid_reply_is_repaired_once_and_the_schema_is_sent_to_the_provider(folder: Path) -> None:
    provider = ScriptedProvider(says("It is warm."), says('{"city": "Oslo", "degrees": 21}'))

    async with metier.open(folder, provider=provider) as agent:
        result = await agent.run("How is the weather?", output_schema=Weather)
        again = await agent.resume(result.run_id, output_schema=Weather)
        plain = await agent.resume(result.run_id)

    assert result.value == again.value == Weather(city="Oslo", degrees=21)
    assert plain.value == {"city": "Oslo", "degrees": 21}
    assert "degrees" in str(provider.requests[0])


async def test_a_run_whose_replies_stay_invalid_fails_without_a_value(folder: Path) -> None:
    provider = ScriptedProvider(*[says("It is warm.")] * 4)

    async with metier.open(folder, provider=provider) as agent:
        result = await agent.run("How is the weather?", output_schema=Weather)

    assert (result.status, result.reason) == ("failed", "not_accepted")
    with pytest.raises(metier.RunFailed):
        _ = result.value


async def test_a_result_that_fails_python_validation_has_no_value_but_a_reason(folder: Path) -> None:
    provider = ScriptedProvider(says('{"city": "Oslo", "degrees": 99}'))

    async with metier.open(folder, provider=provider) as agent:
        result = await agent.run("How is the weather?", output_schema=Weather)

    assert not result.ok
    assert result.reason == "value_invalid"
    with pytest.raises(metier.RunFailed, match="too hot to be true"):
        _ = result.value
    with pytest.raises(metier.RunFailed):
        result.raise_for_status()


async def test_a_type_without_a_schema_is_rejected_before_the_run_starts(folder: Path) -> None:
    async with metier.open(folder, provider=ScriptedProvider()) as agent:
        with pytest.raises(metier.UsageError, match="output_schema"):
            await agent.run("?", output_schema=type(iter("")))

    assert not list((folder / "runs").glob("2*"))


async def test_a_failed_run_returns_a_result_and_raises_only_on_request(folder: Path) -> None:
    provider = ScriptedProvider(*[calls(ToolCall("look_up", {"city": str(turn)})) for turn in range(3)])

    async with metier.open(folder, provider=provider, tools=[look_up], settings={"runtime.max_turns": 2}) as agent:
        result = await agent.run("Look")
        assert (result.status, result.reason) == ("escalated", "max_turns_exceeded")
        with pytest.raises(metier.RunFailed, match="turns") as failure:
            result.raise_for_status()
        assert failure.value.run_id == result.run_id


async def test_a_run_that_reached_its_limit_continues_with_a_higher_one(folder: Path) -> None:
    provider = ScriptedProvider(
        calls(ToolCall("look_up", {"city": "a"})), calls(ToolCall("look_up", {"city": "b"})), says("Done.")
    )

    async with metier.open(folder, provider=provider, tools=[look_up], settings={"runtime.max_turns": 2}) as agent:
        limited = await agent.run("Look")
        done = await agent.resume(limited.run_id, max_turns=5)

    assert limited.status == "escalated"
    assert done.text == "Done."


@pytest.mark.parametrize(("verdict", "wrote"), [(True, "tea"), (False, ""), (None, "")])
async def test_the_program_decides_calls_that_need_approval(folder: Path, verdict: bool | None, wrote: str) -> None:
    asked: list[metier.Approval] = []

    async def approve(approval: metier.Approval) -> bool | None:
        asked.append(approval)
        return verdict

    provider = ScriptedProvider(calls(ToolCall("Write", {"path": "list.txt", "content": "tea"})), says("Over."))

    async with metier.open(folder, provider=provider, approve=approve, settings=GUARDED) as agent:
        result = await agent.run("Write tea")

    file = folder / "list.txt"
    assert (file.read_text() if file.exists() else "") == wrote
    assert [(each.tool, each.arguments["path"]) for each in asked] == [("Write", "list.txt")]
    assert "tea" in asked[0].preview
    assert result.status == ("paused" if verdict is None else "completed")
    assert len(result.approvals) == (1 if verdict is None else 0)


async def test_an_approval_with_edited_arguments_runs_the_edited_call(folder: Path) -> None:
    provider = ScriptedProvider(calls(ToolCall("Write", {"path": "list.txt", "content": "tea"})), says("Over."))

    def approve(approval: metier.Approval) -> metier.Decision:
        return metier.Decision(approved=True, arguments={**approval.arguments, "content": "coffee"})

    async with metier.open(folder, provider=provider, approve=approve, settings=GUARDED) as agent:
        await agent.run("Write tea")

    assert (folder / "list.txt").read_text() == "coffee"


@pytest.mark.parametrize("approves", [True, False])
async def test_a_paused_run_is_decided_and_resumed_by_a_second_program(folder: Path, approves: bool) -> None:
    call = calls(ToolCall("Write", {"path": "list.txt", "content": "tea"}))
    async with metier.open(folder, provider=ScriptedProvider(call), settings=GUARDED) as agent:
        parked = await agent.run("Write tea")

    later = ScriptedProvider(says("Over."))
    async with metier.open(folder, provider=later, settings=GUARDED) as agent:
        [approval] = await agent.approvals()
        if approves:
            await agent.approve(approval)
        else:
            await agent.deny(approval.approval_id, reason="no tea today")
        with pytest.raises(metier.ApprovalClosed):
            await agent.approve(approval)
        done = await agent.resume("latest")

    assert parked.approvals == (approval,)
    assert done.run_id == parked.run_id
    assert done.text == "Over."
    assert (folder / "list.txt").exists() == approves
    assert ("no tea today" in str(later.requests[0].messages)) != approves


@pytest.mark.parametrize("values", ["blue", {"answer": "blue"}])
async def test_a_question_is_answered_and_the_run_continues(folder: Path, values: str | dict[str, str]) -> None:
    provider = ScriptedProvider(calls(ToolCall("ask_user", {"question": "Which colour?"})), says("Painted it blue."))

    async with metier.open(folder, provider=provider) as agent:
        asked = await agent.run("Paint the wall")
        assert asked.question == metier.Question(text="Which colour?", fields=("answer",))
        assert asked.status == "input_required"
        with pytest.raises(metier.UsageError, match="does not ask for 'colour'"):
            await agent.answer(asked.run_id, {"colour": "blue"})
        done = await agent.answer(asked.run_id, values)

    assert done.text == "Painted it blue."
    assert "blue" in str(provider.requests[1].messages)
    assert done.question is None


async def test_a_canceled_run_is_not_resumed(folder: Path) -> None:
    provider = ScriptedProvider(calls(ToolCall("ask_user", {"question": "Which colour?"})))

    async with metier.open(folder, provider=provider) as agent:
        asked = await agent.run("Paint the wall")
        canceled = await agent.cancel(asked.run_id)
        again = await agent.resume(asked.run_id)

    assert (canceled.status, again.status) == ("canceled", "canceled")
    assert provider.left == 0


async def test_several_runs_of_one_agent_continue_at_the_same_time(folder: Path) -> None:
    inside, both = 0, anyio.Event()

    @metier.tool
    async def meet() -> str:
        """Wait for the other run."""
        nonlocal inside
        inside += 1
        if inside == 2:
            both.set()
        with anyio.fail_after(100):
            await both.wait()
        return "met"

    provider = ScriptedProvider(calls(ToolCall("meet")), calls(ToolCall("meet")), says("Done."), says("Done."))
    results: list[str] = []

    async with metier.open(folder, provider=provider, tools=[meet]) as agent:

        async def start() -> None:
            results.append((await agent.run("Meet")).text)

        async with anyio.create_task_group() as group:
            group.start_soon(start)
            group.start_soon(start)

    assert results == ["Done.", "Done."]


async def test_an_agent_definition_and_context_reach_the_model(folder: Path) -> None:
    definition = folder / ".agent" / "agents" / "poet" / "AGENT.md"
    definition.parent.mkdir(parents=True)
    definition.write_text("---\nname: poet\ndescription: Writes verse.\n---\n\nYou answer in verse.\n")
    provider = ScriptedProvider(says("Roses."))

    async with metier.open(folder, provider=provider) as agent:
        await agent.run("Greet", agent="poet", context="It is spring.")

    assert "You answer in verse." in str(provider.requests[0].system)
    assert "It is spring." in str(provider.requests[0].messages)


async def test_wrong_settings_are_refused_with_every_problem(folder: Path) -> None:
    settings = {"runtime.max_turn": 3, "runtime.profile": "free"}

    with pytest.raises(metier.ConfigError) as refused:
        async with metier.open(folder, settings=settings):
            raise AssertionError("not opened")

    assert [problem.render() for problem in refused.value.problems]
    assert len(refused.value.problems) == 2
    assert "max_turn" in "".join(traceback.format_exception(refused.value))


async def test_a_missing_folder_is_rejected_and_not_created(folder: Path) -> None:
    with pytest.raises(metier.UsageError, match="does not exist"):
        async with metier.open(folder / "nowhere"):
            raise AssertionError("not opened")

    assert not (folder / "nowhere").exists()


async def test_an_untrusted_clone_is_logged_and_stays_restricted(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (folder / ".git" / "logs").mkdir(parents=True)
    (folder / ".git" / "config").write_text('[remote "origin"]\n\turl = https://example.invalid/x.git\n')
    (folder / "agent.yaml").write_text(json.dumps({"runtime": {"profile": "permissive"}}))
    provider = ScriptedProvider(calls(ToolCall("Write", {"path": "list.txt", "content": "tea"})), says("Over."))

    with caplog.at_level(logging.WARNING, logger="metier"):
        async with metier.open(folder, provider=provider) as agent:
            result = await agent.run("Write tea")

    assert "came from elsewhere" in caplog.text
    assert result.status == "paused"


async def test_an_exception_in_the_program_leaves_the_block_unchanged(folder: Path) -> None:
    with pytest.raises(ExceptionGroup) as raised:
        async with metier.open(folder, provider=ScriptedProvider()):
            raise ExceptionGroup("mine", [KeyError("x"), ValueError("y")])

    assert raised.value.message == "mine"
