"""CPU of one model call, ours against a raw httpx2 loop that sends the same bytes to the same zero-latency server."""

import asyncio
import gc
import json
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable
from statistics import median
from typing import NamedTuple

import httpx2

from bench.table import Row
from metier.messages import Message, TextPart, ToolCallPart, ToolResultPart, ToolSpec, user
from metier.providers.base import ModelRequest, Provider, SystemBlock
from metier.providers.connection import ApiStyle
from metier.providers.facts import load_facts
from metier.providers.registry import ProviderChoice, open_provider

CALLS = 60
ROUNDS = 7
LIMIT = 2.0

_SERVER = """
import asyncio, sys
BODIES = {
    "/v1/messages": b'{"type":"message","id":"m","model":"m","content":[{"type":"text","text":"ok"}],'
        b'"stop_reason":"end_turn","usage":{"input_tokens":5,"output_tokens":2}}',
    "/chat/completions": b'{"id":"c","model":"m","choices":[{"index":0,"message":{"role":"assistant","content":"ok"},'
        b'"finish_reason":"stop"}],"usage":{"prompt_tokens":5,"completion_tokens":2}}',
    "/responses": b'{"id":"r","model":"m","status":"completed","output":[{"type":"message","role":"assistant",'
        b'"content":[{"type":"output_text","text":"ok"}]}],"usage":{"input_tokens":5,"output_tokens":2}}',
    "": b'{"candidates":[{"content":{"role":"model","parts":[{"text":"ok"}]},"finishReason":"STOP"}],'
        b'"usageMetadata":{"promptTokenCount":5,"candidatesTokenCount":2},"responseId":"g"}',
}
async def serve(reader, writer):
    try:
        while True:
            head = (await reader.readuntil(b"\\r\\n\\r\\n")).decode("latin-1")
            size = next(int(l.split(":")[1]) for l in head.lower().split("\\r\\n") if l.startswith("content-length"))
            await reader.readexactly(size)
            body = BODIES.get(head.split(" ")[1], BODIES[""])
            head = b"HTTP/1.1 200 OK\\r\\ncontent-type: application/json\\r\\ncontent-length: %d\\r\\n\\r\\n"
            writer.write(head % len(body) + body)
            await writer.drain()
    except (asyncio.IncompleteReadError, ConnectionError):
        writer.close()
async def main():
    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()
asyncio.run(main())
"""


def rows() -> list[Row]:
    with subprocess.Popen([sys.executable, "-c", _SERVER], stdout=subprocess.PIPE, text=True) as server:
        try:
            assert server.stdout is not None
            url = f"http://127.0.0.1:{int(server.stdout.readline())}"
            return [asyncio.run(_measure(url, case)) for case in _CASES]
        finally:
            server.terminate()


class Case(NamedTuple):
    name: str
    api: ApiStyle
    size: int


_APIS: tuple[tuple[str, ApiStyle], ...] = (
    ("anthropic", "auto"),
    ("gemini", "auto"),
    ("openai", "chat"),
    ("openai", "responses"),
)
_CASES = [Case(name, api, size) for name, api in _APIS for size in (50, 400)]


async def _measure(url: str, case: Case) -> Row:
    choice = ProviderChoice(name=case.name, base_url=url, api=case.api)
    environment = {"ANTHROPIC_API_KEY": "k", "GEMINI_API_KEY": "k"}
    provider = open_provider(choice, load_facts(), environment=environment)
    history = build_history(case.size)
    path, body = await _sent(provider, history)
    raw_client = httpx2.AsyncClient()

    requests = [_request(history, number) for number in range(CALLS)]

    async def ours(number: int) -> None:
        await provider.reply(requests[number])

    async def raw(_: int) -> None:
        response = await raw_client.post(url + path, content=body, headers={"Content-Type": "application/json"})
        json.loads(response.content)

    ratios: list[float] = []
    costs: list[float] = []
    for _ in range(ROUNDS):
        mine, theirs = await _cpu(ours), await _cpu(raw)
        ratios.append(mine / theirs)
        costs.append(mine)
    await provider.close()
    await raw_client.aclose()
    ratio = median(ratios)
    value = f"{ratio:.2f} x raw ({median(costs) * 1000:.2f} ms, {len(body) // 1024} KiB)"
    label = case.name if case.api == "auto" else f"{case.name} {case.api}"
    return Row(f"CPU per call, {label}, {case.size} messages", value, f"<= {LIMIT:g} x raw httpx2", ratio <= LIMIT)


async def _cpu(call: Callable[[int], Awaitable[None]]) -> float:
    """Seconds of this process per call."""
    await call(0)
    gc.collect()
    started = time.process_time()
    for number in range(CALLS):
        await call(number)
    return (time.process_time() - started) / CALLS


async def _sent(provider: Provider, history: tuple[Message, ...]) -> tuple[str, bytes]:
    """The path and the bytes that our code sends."""
    seen: list[tuple[str, bytes]] = []
    original = httpx2.AsyncClient.send

    async def spy(self: httpx2.AsyncClient, request: httpx2.Request, **options: object) -> httpx2.Response:
        seen.append((request.url.raw_path.decode(), request.content))
        return await original(self, request, **options)  # pyright: ignore[reportArgumentType]

    httpx2.AsyncClient.send = spy
    try:
        await provider.reply(_request(history, 0))
    finally:
        httpx2.AsyncClient.send = original
    return seen[0]


def build_history(size: int) -> tuple[Message, ...]:
    """A conversation of a realistic shape: a call and its result in every pair, some 300 bytes a message."""
    messages = [user("Read the notes and tidy them up, one file after the other.")]
    for number in range(1, size, 2):
        call = ToolCallPart(id=f"call_{number:08}", name="Read", arguments={"path": f"notes/{number}.md", "limit": 200})
        said = TextPart(text=f"Looking at file {number} next, because the list of names says that it comes now.")
        result = ToolResultPart(call_id=call.id, name="Read", text=f"# Note {number}\n" + "Some text of a note. " * 20)
        messages.append(Message(role="assistant", parts=(said, call)))
        messages.append(Message(role="tool", parts=(result,)))
    return tuple(messages[: size - (size % 2 == 0)])


def _request(history: tuple[Message, ...], number: int) -> ModelRequest:
    """Every turn adds one message that was not seen before."""
    tools = tuple(
        ToolSpec(
            name=name,
            description=f"{name} something in the workspace",
            input_schema={"type": "object", "properties": {"path": {"type": "string"}}, "required": ["path"]},
        )
        for name in ("Read", "Write", "Edit", "Bash", "Glob", "Grep", "notes.search", "github/issues")
    )
    return ModelRequest(
        model="model-1",
        system=(SystemBlock("You tidy notes. " * 100, cache=True),),
        messages=(*history, user(f"Go on with number {number:04}")),
        tools=tools,
    )


if __name__ == "__main__":
    for row in rows():
        print(f"{row.name:45} {row.value:35} {row.target:20} {'ok' if row.holds else 'FAILS'}")
