"""The cost of a turn doesn't depend on the number of turns: counted in function calls, which load doesn't change."""

import cProfile
import json
import os
import statistics
from pathlib import Path
from typing import override

import anyio
import pytest
from pydantic import JsonValue

from metier.engine.options import RuntimeOptions
from metier.messages import ModelReply, TextPart, ToolCallPart, Usage
from metier.providers.base import ModelRequest, Observer
from metier.providers.options import ModelOptions
from metier.runtime.host import Host
from metier.runtime.requests import RunRequest
from metier.runtime.runs import Runtime, open_runtime
from metier.settings.sections import Settings
from metier.skills.workspace_trust import MADE_HERE
from metier.store.base import StoredEntry
from metier.store.wrapper import StoreWrapper
from metier.testing.scripted import ScriptedProvider, ToolCall, calls, says
from metier.tools.base import ToolContext, ToolInfo, ToolResult

pytestmark = [pytest.mark.anyio, pytest.mark.slow]

TURNS = 400


class Echo:
    info = ToolInfo(
        id="test:echo",
        name="echo",
        description="Say it again.",
        category="custom",
        input_schema={"type": "object", "properties": {"text": {"type": "string"}}},
        risk="low",
        effect="read",
    )

    async def execute(self, arguments: dict[str, JsonValue], context: ToolContext) -> ToolResult:
        return ToolResult(ok=True, output=f"echo {arguments['text']} " + "word " * 40)


class Talker:
    """A model that calls the tool once per turn and counts Python function calls between turns."""

    name = "talker"

    def __init__(self) -> None:
        self.profile = cProfile.Profile()
        self.turns = 0
        self.costs: list[int] = []
        self.sizes: list[int] = []

    async def reply(self, request: ModelRequest, *, observe: Observer | None = None) -> ModelReply:
        self.profile.disable()
        self.costs.append(sum(entry.callcount for entry in self.profile.getstats()))
        self.sizes.append(len(request.messages))
        self.profile.clear()
        self.turns += 1
        usage = Usage(input_tokens=100, output_tokens=10)
        call = ToolCallPart(id=f"c{self.turns}", name="echo", arguments={"text": f"turn {self.turns}"})
        done = self.turns > TURNS
        self.profile.enable()
        return ModelReply(
            parts=(TextPart(text="done"),) if done else (call,),
            stop_reason="end" if done else "tool_calls",
            provider=self.name,
            model="m",
            usage=usage,
        )

    async def count_tokens(self, request: ModelRequest) -> None:
        return None

    async def close(self) -> None:
        return None


async def test_late_turn_of_a_long_run_costs_the_same_as_an_early_one(tmp_path: Path) -> None:
    talker = Talker()
    settings = Settings(
        model=ModelOptions(max_context_tokens=6_000, response_headroom_tokens=1_000),
        runtime=RuntimeOptions(max_turns=TURNS + 5),
    )
    host = Host(
        trust=MADE_HERE,
        settings=settings,
        workspace=tmp_path,
        home=tmp_path,
        environ=dict(os.environ),
        provider=talker,
        tools=(Echo(),),
    )

    with anyio.fail_after(120):
        async with open_runtime(host) as runtime:
            state = await runtime.start(RunRequest(task="talk"))
    talker.profile.disable()

    early, late = statistics.median(talker.costs[80:120]), statistics.median(talker.costs[-40:])
    assert state.status == "completed", state.failure
    assert max(talker.sizes[80:]) < 2 * TURNS  # requests were trimmed: the window is small
    assert late <= 1.2 * early, (early, late)


class CountingStore(StoreWrapper):
    read = 0

    @override
    async def read_journal(self, run_id: str, *, after: int = 0, limit: int | None = None) -> list[StoredEntry]:
        found = await super().read_journal(run_id, after=after, limit=limit)
        self.read += len(found)
        return found


async def test_resuming_an_ended_run_reads_its_journal_once_and_leaves_its_record(tmp_path: Path) -> None:
    host = Host(
        trust=MADE_HERE,
        settings=Settings(),
        workspace=tmp_path,
        home=tmp_path,
        environ=dict(os.environ),
        provider=ScriptedProvider(calls(ToolCall("echo", {"text": "hi"})), says("Done.")),
        tools=(Echo(),),
    )
    async with open_runtime(host) as runtime:
        state = await runtime.start(RunRequest(task="talk"))
        store = CountingStore(runtime.store)
        record = runtime.folder(state.run_id) / "run.json"
        written = record.read_bytes()

        again = await Runtime(runtime.host, store).resume(state.run_id)
        kept = record.read_bytes()
        record.unlink()
        await Runtime(runtime.host, runtime.store).resume(state.run_id)

    assert (again.status, again.seq) == (state.status, state.seq)
    assert store.read == state.seq
    assert kept == written
    assert json.loads(record.read_bytes())["journal_entries"] == state.seq
