"""A 50-turn run on the Anthropic SDK against a bare loop on the same SDK; many runs at once; bytes written per turn."""

import contextlib
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Generator
from pathlib import Path
from typing import Any

import anthropic
import anyio

from bench.engine import Echo, Talker
from bench.table import Row
from metier.engine.options import RuntimeOptions
from metier.providers.options import AnthropicOptions, ModelOptions, ProvidersOptions
from metier.runtime.place import Place
from metier.runtime.requests import RunRequest
from metier.runtime.runs import open_runtime
from metier.settings.model import Settings

TURNS = 50
SERVER = """
import json, sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
class H(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        n = sum(m["role"] == "assistant" for m in body["messages"])
        call = {"type": "tool_use", "id": f"t{n}", "name": "echo", "input": {"text": f"turn {n}"}}
        done = n >= int(sys.argv[1])
        reply = {"id": f"m{n}", "type": "message", "role": "assistant", "model": body["model"],
                 "content": [{"type": "text", "text": "done"}] if done else [call],
                 "stop_reason": "end_turn" if done else "tool_use", "stop_sequence": None,
                 "usage": {"input_tokens": 100, "output_tokens": 10}}
        data = json.dumps(reply).encode()
        self.send_response(200)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)
    def log_message(self, *args): pass
server = ThreadingHTTPServer(("127.0.0.1", 0), H)
print(server.server_port, flush=True)
server.serve_forever()
"""


def rows() -> list[Row]:
    with _server() as url:
        bare = min(anyio.run(_bare, url) for _ in range(3))
        ours = min(anyio.run(_ours, url) for _ in range(3))
    finished, early, late = anyio.run(_many)
    return [
        Row(f"{TURNS} turns on the Anthropic SDK / bare loop, CPU", f"{ours / bare:.2f} x", "<= 2 x", ours / bare <= 2),
        Row("200 runs of 10 turns at once in one process", f"{finished} completed", "200", finished == 200),
        Row("bytes written in turns 300-400 / turns 10-110", f"{late / early:.2f} x", "<= 1.3 x", late / early <= 1.3),
    ]  # fmt: skip


@contextlib.contextmanager
def _server() -> Generator[str]:
    process = subprocess.Popen([sys.executable, "-c", SERVER, str(TURNS)], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    try:
        yield f"http://127.0.0.1:{process.stdout.readline().strip()}"
    finally:
        process.kill()
        process.wait()


async def _bare(url: str) -> float:
    started = time.process_time()
    client = anthropic.AsyncAnthropic(base_url=url, api_key="k", max_retries=0)
    tools: Any = [{"name": "echo", "description": "Say it again.", "input_schema": {"type": "object"}}]
    messages: list[Any] = [{"role": "user", "content": "talk for a while"}]
    while True:
        reply = await client.messages.create(model="claude-sonnet-4-5", max_tokens=1000, messages=messages, tools=tools)
        messages.append({"role": "assistant", "content": [block.model_dump() for block in reply.content]})
        calls = [block for block in reply.content if block.type == "tool_use"]
        if not calls:
            break
        results = [{"type": "tool_result", "tool_use_id": call.id, "content": "echo " + "word " * 40} for call in calls]
        messages.append({"role": "user", "content": results})
    await client.close()
    return time.process_time() - started


async def _ours(url: str) -> float:
    with tempfile.TemporaryDirectory() as folder:
        model = ModelOptions(providers=ProvidersOptions(anthropic=AnthropicOptions(base_url=url)))
        settings = Settings(model=model, runtime=RuntimeOptions(max_turns=TURNS + 5))
        environ = {**os.environ, "ANTHROPIC_API_KEY": "k"}
        place = Place(settings=settings, workspace=Path(folder), home=Path(folder), environ=environ, tools=(Echo(),))
        async with open_runtime(place) as runtime:
            started = time.process_time()
            state = await runtime.start(RunRequest(task="talk for a while"))
            assert state.status == "completed", state.failure
            return time.process_time() - started


async def _many() -> tuple[int, float, float]:
    done: list[str] = []
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)

        async def one() -> None:
            place = _place(root, 10)
            async with open_runtime(place) as runtime:
                done.append((await runtime.start(RunRequest(task="talk"))).status)

        async with anyio.create_task_group() as group:
            for _ in range(200):
                group.start_soon(one)
        async with open_runtime(_place(root, 400)) as runtime:
            state = await runtime.start(RunRequest(task="talk for long"))
            sizes = [len(entry.data) for entry in await runtime.store.read_journal(state.run_id)]
    per_turn = len(sizes) / 400
    early = sum(sizes[int(10 * per_turn) : int(110 * per_turn)])
    late = sum(sizes[int(300 * per_turn) : int(400 * per_turn)])
    return done.count("completed"), early, late


def _place(root: Path, turns: int) -> Place:
    settings = Settings(runtime=RuntimeOptions(max_turns=turns + 5))
    return Place(
        settings=settings, workspace=root, home=root, environ=dict(os.environ), provider=Talker(turns), tools=(Echo(),)
    )
