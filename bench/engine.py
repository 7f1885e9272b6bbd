"""Overhead of a turn: journal, events, policy and prompt, with a provider that answers at once."""

import os
import statistics
import tempfile
import time
from pathlib import Path

import anyio
from pydantic import JsonValue

from bench.table import Row
from metier.engine.options import RuntimeOptions
from metier.messages import ModelReply, TextPart, ToolCallPart, Usage
from metier.providers.base import ModelRequest, Observer
from metier.runtime.host import Host
from metier.runtime.requests import RunRequest
from metier.runtime.runs import open_runtime
from metier.settings.sections import Settings
from metier.skills.workspace_trust import MADE_HERE
from metier.tools.base import ToolContext, ToolInfo, ToolResult

TURNS = 400


class Echo:
    """A tool that reads nothing and says so."""

    info = ToolInfo(
        id="bench:echo",
        name="echo",
        description="Say it again.",
        category="custom",
        input_schema={"type": "object", "properties": {"text": {"type": "string"}}, "required": ["text"]},
        risk="low",
        effect="read",
    )

    async def execute(self, arguments: dict[str, JsonValue], context: ToolContext) -> ToolResult:  # noqa: ARG002
        return ToolResult(ok=True, output=f"echo {arguments['text']} " + "word " * 40)


class Talker:
    """Calls the tool once a turn and notes the CPU time between its turns."""

    name = "bench"

    def __init__(self, turns: int) -> None:
        self.turns = turns
        self.marks: list[float] = []

    async def reply(self, request: ModelRequest, *, observe: Observer | None = None) -> ModelReply:  # noqa: ARG002
        self.marks.append(time.process_time())
        number = len(self.marks)
        usage = Usage(input_tokens=100, output_tokens=10)
        if number > self.turns:
            return ModelReply(
                parts=(TextPart(text="done"),), stop_reason="end", provider="bench", model="bench", usage=usage
            )
        call = ToolCallPart(id=f"c{number}", name="echo", arguments={"text": f"turn {number}"})
        return ModelReply(parts=(call,), stop_reason="tool_calls", provider="bench", model="bench", usage=usage)

    async def count_tokens(self, request: ModelRequest) -> None:  # noqa: ARG002
        return None

    async def close(self) -> None:
        return None


def rows() -> list[Row]:
    costs = anyio.run(measure_turns, TURNS)
    early = statistics.median(costs[5:25])
    late = statistics.median(costs[-20:])
    return [
        Row("CPU per turn: journal, events, policy, prompt (median)", f"{statistics.median(costs):.2f} ms", "<= 1.5 ms",
            statistics.median(costs) <= 1.5),
        Row(f"CPU of turn {TURNS} / turn 10", f"{late / early:.2f} x", "<= 1.3 x", late / early <= 1.3),
    ]  # fmt: skip


async def measure_turns(turns: int) -> list[float]:
    """The milliseconds of processor time between the turns of one run."""
    with tempfile.TemporaryDirectory() as folder:
        talker = Talker(turns)
        settings = Settings(runtime=RuntimeOptions(max_turns=turns + 5))
        host = Host(
            trust=MADE_HERE,
            settings=settings,
            workspace=Path(folder),
            home=Path(folder),
            environ=dict(os.environ),
            provider=talker,
            tools=(Echo(),),
        )
        async with open_runtime(host) as runtime:
            state = await runtime.start(RunRequest(task="talk for a while"))
        assert state.status == "completed", state.failure
        return [1000 * (after - before) for before, after in zip(talker.marks, talker.marks[1:], strict=False)]
