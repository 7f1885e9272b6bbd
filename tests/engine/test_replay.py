"""A recorded run is driven again with its effects blocked, and gives the same journal."""

from pathlib import Path
from typing import Any

import anyio
import pytest

from metier.engine.journal import read_entries
from metier.runtime.replays import replay_run
from metier.runtime.runs import Answer, RunRequest, Runtime
from metier.testing.scripted import ScriptedProvider, ToolCall, calls, fails, says
from metier.providers.failures import QuotaExhausted

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


async def start(runtime: Runtime, task: str = "take notes") -> str:
    return (await runtime.start(RunRequest(task=task))).run_id


async def test_run_with_skills_and_parallel_calls_replays_equal(open_at: Any) -> None:
    script = (
        calls(ToolCall("use_skill", {"skill": "notes", "reason": "fits"})),
        calls(ToolCall("Look", {"text": "a"}), ToolCall("Look", {"text": "b"}), ToolCall("Pay", {"text": "c"})),
        calls(ToolCall("read_skill_files", {"paths": ["SKILL.md"]})),
        says("All done."),
    )
    async with open_at(*script) as runtime:
        run_id = await start(runtime)

        report = await replay_run(runtime, run_id)

        assert report.outcome.divergence is None
        assert report.outcome.compared == len(await read_entries(runtime.store, run_id))
