"""Watching a run from Python: typed events, partial text, and leaving early."""

from pathlib import Path

import anyio
import pytest

import metier
from metier.events.run import RunFinished, RunStarted
from metier.events.step import SkillStepExecuted
from metier.messages import ModelReply
from metier.providers.base import Delta, ModelRequest, Observer
from metier.testing.scripted import ScriptedProvider, ToolCall, calls, says

pytestmark = pytest.mark.anyio


class SlowProvider(ScriptedProvider):
    """A provider that streams half an answer, then waits."""

    def __init__(self) -> None:
        super().__init__()
        self.asked = anyio.Event()

    async def reply(self, request: ModelRequest, *, observe: Observer | None = None) -> ModelReply:
        if observe is not None:
            observe(Delta("text", "Once upon a time there was a story.\n" * 900))
        self.asked.set()
        await anyio.sleep_forever()
        raise AssertionError("cancelled before")


@metier.tool(effect="read")
def look() -> str:
    """Look around."""
    return "trees"


async def test_events_come_in_order_with_typed_payloads_and_the_result_follows(folder: Path) -> None:
    provider = ScriptedProvider(calls(ToolCall("look"), text="I look."), says("I saw trees."))
    seen: list[metier.Event] = []
    text = ""

    async with metier.open(folder, provider=provider, tools=[look]) as agent:
        async with agent.stream("Look") as stream:
            async for item in stream:
                if isinstance(item, metier.TextDelta):
                    text += item.text
                else:
                    seen.append(item)
        result = stream.result

    assert [each.seq for each in seen] == sorted(each.seq for each in seen)
    assert isinstance(seen[0].payload, RunStarted)
    assert isinstance(seen[-1].payload, RunFinished)
    [step] = [each.payload for each in seen if isinstance(each.payload, SkillStepExecuted)]
    assert (step.tool, step.status) == ("look", "succeeded")
    assert text == "I look.I saw trees."
    assert result.text == "I saw trees."
    assert {each.run_id for each in seen} == {result.run_id}


async def test_a_stream_can_be_read_without_its_own_block(folder: Path) -> None:
    async with metier.open(folder, provider=ScriptedProvider(says("Hello."))) as agent:
        stream = agent.stream("Greet")
        kinds = [item.event_type async for item in stream if isinstance(item, metier.Event)]

        assert kinds[-1] == "run_finished"
        assert stream.result.text == "Hello."


async def test_leaving_early_pauses_the_run_and_it_can_be_resumed(folder: Path) -> None:
    with anyio.fail_after(100):
        async with metier.open(folder, provider=SlowProvider()) as agent:
            async with agent.stream("Tell a story") as stream:
                async for item in stream:
                    if isinstance(item, metier.TextDelta):
                        break
            left = stream.result

        async with metier.open(folder, provider=ScriptedProvider(says("The end."))) as agent:
            done = await agent.resume(left.run_id)

    assert left.status == "paused"
    assert done.text == "The end."


async def test_closing_the_agent_pauses_a_run_whose_stream_was_dropped(folder: Path) -> None:
    provider = SlowProvider()
    with anyio.fail_after(100):
        async with metier.open(folder, provider=provider) as agent:
            stream = agent.stream("Tell a story")
            await anext(stream)
            await provider.asked.wait()

    assert stream.result.status == "paused"


async def test_an_error_that_ends_the_run_is_raised_to_the_event_reader(folder: Path) -> None:
    def approve(_approval: metier.Approval) -> bool:
        raise LookupError("my own mistake")

    provider = ScriptedProvider(calls(ToolCall("Write", {"path": "a", "content": "b"})))
    settings = {"runtime.profile": "guarded"}

    async with metier.open(folder, provider=provider, approve=approve, settings=settings) as agent:
        with pytest.raises(LookupError, match="my own mistake"):
            async for _ in agent.stream("Write"):
                pass
        assert len(await agent.approvals()) == 1


async def test_no_result_is_available_before_the_end(folder: Path) -> None:
    async with metier.open(folder, provider=ScriptedProvider(says("Hello."))) as agent:
        stream = agent.stream("Greet")

        with pytest.raises(metier.UsageError, match="not ended"):
            _ = stream.result


async def test_streamed_text_hides_a_secret_of_the_environment(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    secret = "s3cr3t-" + "value-0123456789"
    monkeypatch.setenv("MY_SERVICE_TOKEN", secret)
    text = ""

    async with metier.open(folder, provider=ScriptedProvider(says(f"It is {secret}, I think."))) as agent:
        async for item in agent.stream("What is it?"):
            text += item.text if isinstance(item, metier.TextDelta) else ""

    assert secret not in text
    assert text.startswith("It is ")
