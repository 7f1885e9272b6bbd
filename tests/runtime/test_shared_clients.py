"""Runs of one host share its HTTP client: its connections outlive a run and end with the host."""

import asyncio
import json
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import pytest

from metier.providers.options import AnthropicOptions, ModelOptions, ProvidersOptions
from metier.runtime.host import Host
from metier.runtime.requests import RunRequest
from metier.runtime.runs import open_runtime
from metier.settings.model import Settings
from metier.skills.trust.workspace_trust import MADE_HERE

pytestmark = pytest.mark.anyio

DONE = json.dumps(
    {
        "type": "message",
        "id": "m",
        "model": "m",
        "role": "assistant",
        "content": [{"type": "text", "text": "done"}],
        "stop_reason": "end_turn",
        "usage": {"input_tokens": 5, "output_tokens": 1},
    }
).encode()


class Counting:
    """A model server that counts its connections and how many of them are open."""

    def __init__(self) -> None:
        self.url = ""
        self.opened = 0
        self.requests = 0
        self.closed = asyncio.Semaphore(0)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.opened += 1
        try:
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).lower()
                lines = [line.partition(b":") for line in head.split(b"\r\n")]
                await reader.readexactly(next(int(value) for name, _, value in lines if name == b"content-length"))
                self.requests += 1
                size = len(DONE)
                writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n" % size)
                writer.write(DONE)
                await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            writer.close()
            self.closed.release()


@asynccontextmanager
async def running() -> AsyncGenerator[Counting]:
    server = Counting()
    listener = await asyncio.start_server(server.serve, "127.0.0.1", 0)
    server.url = f"http://127.0.0.1:{listener.sockets[0].getsockname()[1]}"
    try:
        yield server
    finally:
        listener.close()


async def test_runs_of_one_host_share_its_connections(tmp_path: Path) -> None:
    with anyio.fail_after(60):
        async with running() as server:
            providers = ProvidersOptions(anthropic=AnthropicOptions(base_url=server.url))
            place = Host(
                trust=MADE_HERE,
                settings=Settings(model=ModelOptions(providers=providers)),
                workspace=tmp_path,
                home=tmp_path,
                environ={"ANTHROPIC_API_KEY": "k"},
            )
            async with open_runtime(place) as runtime:
                for _ in range(3):
                    state = await runtime.start(RunRequest(task="say done"))
                    assert state.status == "completed", state.failure
                in_use = server.opened
            await server.closed.acquire()

    assert (server.requests, in_use) == (3, 1)
