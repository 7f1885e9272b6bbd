"""Overhead of a run, against bare loops on the same server: the Anthropic SDK, and raw `httpx2`.

Everything is measured after a warm-up, with clients built, in alternation; the quietest round of each counts, because
what else runs on the machine only ever adds. A target in milliseconds is one for a quiet machine; the ratio holds
anywhere.
"""

import json
import os
import tempfile
import time
import warnings
from collections.abc import Callable, Coroutine
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import anthropic
import anyio
import httpx2

from bench.engine import Echo, Talker
from bench.model_server import running_model
from bench.table import Row
from metier.engine.options import RuntimeOptions
from metier.providers.options import AnthropicOptions, ModelOptions, OpenAIOptions, ProvidersOptions
from metier.runtime.host import Host
from metier.runtime.requests import RunRequest
from metier.runtime.runs import Runtime, open_runtime
from metier.settings.sections import Settings
from metier.skills.workspace_trust import MADE_HERE

ROUNDS = 5
TASK = "talk for a while"
RESULT = "echo " + "word " * 40

type Work = Callable[[], Coroutine[Any, Any, None]]


def rows() -> list[Row]:
    warnings.simplefilter("ignore", DeprecationWarning)  # of the model's name, by the SDK
    with running_model() as url:
        return anyio.run(_measure, url)


async def _measure(url: str) -> list[Row]:
    async with AsyncExitStack() as opened:
        folder = Path(opened.enter_context(tempfile.TemporaryDirectory()))
        sdk = await opened.enter_async_context(anthropic.AsyncAnthropic(base_url=url, api_key="k", max_retries=0))
        raw = await opened.enter_async_context(httpx2.AsyncClient())

        async def ours(model: ModelOptions, turns: int) -> Work:
            runtime = await opened.enter_async_context(open_runtime(_host(folder, model, turns)))
            return lambda: _run(runtime)

        bare_50 = lambda: _loop_on_sdk(sdk.with_options(base_url=f"{url}/50"))  # noqa: E731
        bare_10 = lambda: _loop_on_sdk(sdk.with_options(base_url=f"{url}/10"))  # noqa: E731
        raw_50 = lambda: _loop_on_httpx2(raw, f"{url}/50/chat/completions")  # noqa: E731
        long = await _cpu(
            await ours(_anthropic(f"{url}/50"), 50), bare_50, await ours(_chat(f"{url}/50"), 50), raw_50, runs=1
        )
        short = await _cpu(await ours(_anthropic(f"{url}/10"), 10), bare_10, runs=10)
        one = await _cpu(await ours(_anthropic(f"{url}/1"), 1), runs=20)
        many_10 = await ours(_anthropic(f"{url}/10"), 10)
        many = await _cpu(lambda: _at_once(many_10, 200), lambda: _at_once(bare_10, 200), runs=1, rounds=2)
        early, late = await _bytes_written(folder)
    turn = [1000 * seconds / 51 for seconds in long]
    ten = [1000 * seconds / 11 for seconds in short]
    at_once = [1000 * seconds / 2200 for seconds in many]
    fixed = 1000 * one[0] - 2 * turn[0]
    return [
        _row("CPU per turn of 50, Messages / bare SDK loop", turn[0], turn[1], most=1.6),
        _row("CPU per turn of 50, chat completions / raw httpx2 loop", turn[2], turn[3], most=3.2, most_ms=2.4),
        _row("CPU per turn of runs of 10 / bare SDK loop", ten[0], ten[1], most=1.9, most_ms=3.0),
        _row("CPU per turn, 200 runs of 10 at once / bare SDK loops", at_once[0], at_once[1], most=1.6, most_ms=3.0),
        _row("CPU of a run beside its turns / a bare turn", fixed, turn[1], most=6.25, most_ms=10),
        Row("bytes written in turns 300-400 / turns 10-110", f"{late / early:.2f} x", "<= 1.3 x", late / early <= 1.3),
    ]  # fmt: skip


def _row(name: str, ours: float, bare: float, *, most: float, most_ms: float | None = None) -> Row:
    target = f"<= {most:g} x" + (f" (<= {most_ms:g} ms)" if most_ms is not None else "")
    holds = ours / bare <= most or (most_ms is not None and ours <= most_ms)
    return Row(name, f"{ours / bare:.2f} x ({ours:.2f} / {bare:.2f} ms)", target, holds)


async def _cpu(*works: Work, runs: int, rounds: int = ROUNDS) -> list[float]:
    """Seconds of CPU of one run of each, measured in turn; the best of the rounds."""
    for work in works:
        await work()
    best = [float("inf")] * len(works)
    for _ in range(rounds):
        for index, work in enumerate(works):
            started = time.process_time()
            for _ in range(runs):
                await work()
            best[index] = min(best[index], (time.process_time() - started) / runs)
    return best


async def _at_once(work: Work, count: int) -> None:
    async with anyio.create_task_group() as group:
        for _ in range(count):
            group.start_soon(work)


async def _run(runtime: Runtime) -> None:
    state = await runtime.start(RunRequest(task=TASK))
    assert state.status == "completed", state.failure


async def _loop_on_sdk(client: anthropic.AsyncAnthropic) -> None:
    tools: Any = [{"name": "echo", "description": "Say it again.", "input_schema": {"type": "object"}}]
    messages: list[Any] = [{"role": "user", "content": TASK}]
    while True:
        reply = await client.messages.create(model="claude-sonnet-4-5", max_tokens=1000, messages=messages, tools=tools)
        messages.append({"role": "assistant", "content": [block.model_dump() for block in reply.content]})
        calls = [block for block in reply.content if block.type == "tool_use"]
        if not calls:
            return
        results = [{"type": "tool_result", "tool_use_id": call.id, "content": RESULT} for call in calls]
        messages.append({"role": "user", "content": results})


async def _loop_on_httpx2(client: httpx2.AsyncClient, url: str) -> None:
    tools = [{"type": "function", "function": {"name": "echo", "parameters": {"type": "object"}}}]
    messages: list[Any] = [{"role": "user", "content": TASK}]
    while True:
        body = {"model": "m", "messages": messages, "tools": tools}
        reply = json.loads((await client.post(url, json=body)).content)
        message = reply["choices"][0]["message"]
        messages.append(message)
        calls = message.get("tool_calls", [])
        if not calls:
            return
        messages += [{"role": "tool", "tool_call_id": call["id"], "content": RESULT} for call in calls]


async def _bytes_written(root: Path) -> tuple[float, float]:
    settings = Settings(runtime=RuntimeOptions(max_turns=405))
    host = Host(
        trust=MADE_HERE,
        settings=settings,
        workspace=root,
        home=root,
        environ=dict(os.environ),
        provider=Talker(400),
        tools=(Echo(),),
    )
    async with open_runtime(host) as runtime:
        state = await runtime.start(RunRequest(task="talk for long"))
        sizes = [len(entry.data) for entry in await runtime.store.read_journal(state.run_id)]
    per_turn = len(sizes) / 400
    early = sum(sizes[int(10 * per_turn) : int(110 * per_turn)])
    return early, sum(sizes[int(300 * per_turn) : int(400 * per_turn)])


def _host(folder: Path, model: ModelOptions, turns: int) -> Host:
    settings = Settings(model=model, runtime=RuntimeOptions(max_turns=turns + 5))
    environ = {**os.environ, "ANTHROPIC_API_KEY": "k"}
    return Host(trust=MADE_HERE, settings=settings, workspace=folder, home=folder, environ=environ, tools=(Echo(),))


def _anthropic(url: str) -> ModelOptions:
    return ModelOptions(providers=ProvidersOptions(anthropic=AnthropicOptions(base_url=url)))


def _chat(url: str) -> ModelOptions:
    return ModelOptions(provider="openai", name="m", providers=ProvidersOptions(openai=OpenAIOptions(base_url=url)))
