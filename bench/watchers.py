"""500 watchers of 50 runs that go on, over real sockets: one server process, the clients in another.

Run as a program it is the clients: it opens the streams, reads until every event came, and prints how late each was.
"""

import json
import os
import secrets
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Generator
from contextlib import contextmanager
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any, cast
from urllib.parse import urlsplit

import anyio
import anyio.abc
import uvicorn

from bench.server import build_event
from bench.table import Row
from metier.events.record import render_record
from metier.server.processes import build_uvicorn_config
from metier.server.server_config import ServerConfig
from metier.server.state import ServerState
from metier.store.base import RunRow
from metier.store.sqlite.store import open_sqlite_store
from metier.telemetry.jsonl import FILE_NAME

WATCHERS, WATCHED, EVENTS = 500, 50, 40
_EVERY_SECONDS = 0.2
_IDS = tuple(f"20261101-{number:06d}-00aa" for number in range(WATCHED))


def rows() -> list[Row]:
    with tempfile.TemporaryDirectory() as name, _serving(Path(name)) as (state, url, token):
        quiet = _measure(state, url, token, first=1, slow=0)
        slowed = _measure(state, url, token, first=1 + EVENTS, slow=1)
    what = f"{WATCHERS} watchers of {WATCHED} runs over sockets"
    ratio = slowed["p95"] / quiet["p95"]
    return [
        Row(f"{what}: entry to client, p95", f"{quiet['p95'] * 1000:.0f} ms (median {quiet['median'] * 1000:.0f} ms)",
            "<= 250 ms", quiet["p95"] <= 0.25),
        Row(f"{what}: memory of a watcher", f"{quiet['kilobytes']:.0f} KB", "<= 100 KB", quiet["kilobytes"] <= 100),
        Row(f"{what}: p95 beside a reader that does not read", f"{ratio:.2f} x ({slowed['p95'] * 1000:.0f} ms)",
            "<= 1.5 x", ratio <= 1.5),
        Row(f"{what}: an event for one of them", f"{quiet['cpu'] * 1e6:.0f} µs of processor", "", holds=True),
    ]  # fmt: skip


@contextmanager
def _serving(folder: Path) -> Generator[tuple[ServerState, str, str]]:
    listening = socket.socket()
    listening.bind(("127.0.0.1", 0))
    listening.listen(2048)
    port, private = int(listening.getsockname()[1]), folder / "private"
    private.mkdir()
    token = secrets.token_urlsafe(32)
    environ = {**os.environ, "AGENT_SERVER_MAX_WATCHERS": "2000", "AGENT_SERVER_REQUESTS_PER_MINUTE": "100000"}
    server_config = ServerConfig(
        folder=folder,
        home=folder,
        environ=environ,
        token=token,
        key=secrets.token_bytes(32),
        private=private,
        port=port,
    )
    config = build_uvicorn_config(server_config)
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]}, daemon=True)
    thread.start()
    while not server.started:
        time.sleep(0.01)
    try:
        yield cast("ServerState", cast("Any", config.app).state.server), f"http://127.0.0.1:{port}", token
    finally:
        server.should_exit = True
        thread.join(60)
        listening.close()


def _measure(state: ServerState, url: str, token: str, *, first: int, slow: int) -> dict[str, float]:
    before = _resident_kilobytes()
    clients = subprocess.Popen(
        [sys.executable, "-m", "bench.watchers", url, str(first), str(slow)],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert clients.stdin is not None
    assert clients.stdout is not None
    anyio.run(_begin_runs, state)
    clients.stdin.write(token + "\n")
    clients.stdin.flush()
    while state.feed.watchers < WATCHERS + slow:
        time.sleep(0.02)
    time.sleep(1)
    held = (_resident_kilobytes() - before) / WATCHERS
    began = time.process_time()
    _write_all(state, first)
    late = [float(each) for each in json.loads(clients.stdout.readline())]
    spent = time.process_time() - began
    clients.communicate()
    return {
        "p95": statistics.quantiles(late, n=20)[-1],
        "median": statistics.median(late),
        "kilobytes": held,
        "cpu": spent / len(late),
    }


async def _begin_runs(state: ServerState) -> None:
    """Rows of runs that a process drives, as far as the server can see: the store is opened once more for that."""
    store = await open_sqlite_store(state.host.runs / "state.db")
    now = datetime.now(UTC)
    for run_id in _IDS:
        if await store.find_run(run_id) is None:
            row = RunRow(
                run_id=run_id, context_id=run_id, status="in_progress", task="go", created_at=now, updated_at=now
            )
            await store.create_run(row)
            await store.take_lease(run_id, owner="bench", seconds=3600)
            folder = state.runtime.folder(run_id)
            folder.mkdir(parents=True)
            (folder / FILE_NAME).touch()
    await store.close()


def _write_all(state: ServerState, first: int) -> None:
    """All runs at once, five events a second each, as a worker writes them: into the log, which the server looks at."""
    for number in range(first, first + EVENTS):
        for run_id in _IDS:
            record = build_event(run_id, number)
            with (state.runtime.folder(run_id) / FILE_NAME).open("ab") as log:
                log.write(render_record(record) + b"\n")
        time.sleep(_EVERY_SECONDS)


def _resident_kilobytes() -> float:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 1024


async def _watch_all(url: str, token: str, *, first: int, slow: int) -> list[float]:
    late: list[float] = []
    async with anyio.create_task_group() as group:
        for _ in range(slow):
            group.start_soon(_hold, await _open(url, token, _IDS[0], first=first))
        async with anyio.create_task_group() as readers:
            for number in range(WATCHERS):
                stream = await _open(url, token, _IDS[number % WATCHED], first=first)
                readers.start_soon(_read, stream, late)
        group.cancel_scope.cancel()
    return late


async def _open(url: str, token: str, run_id: str, *, first: int) -> anyio.abc.SocketStream:
    address = urlsplit(url)
    assert address.hostname is not None
    assert address.port is not None
    stream = await anyio.connect_tcp(address.hostname, address.port)
    lines = (
        f"GET /api/v1/runs/{run_id}/events HTTP/1.1", f"Host: {address.netloc}", f"Authorization: Bearer {token}",
        "Accept: text/event-stream", f"Last-Event-ID: 0.0.{first - 1}", "", "",
    )  # fmt: skip
    await stream.send("\r\n".join(lines).encode())
    return stream


async def _read(stream: anyio.abc.SocketStream, late: list[float]) -> None:
    seen, text = 0, ""
    async with stream:
        while seen < EVENTS:
            text += (await stream.receive()).decode()
            now = time.time()
            *lines, text = text.split("\n")
            for line in lines:
                if line.startswith("data: {"):
                    stamp = datetime.fromisoformat(json.loads(line[6:])["timestamp"])
                    late.append(now - stamp.timestamp())
                    seen += 1


async def _hold(stream: anyio.abc.SocketStream) -> None:
    async with stream:
        await anyio.sleep_forever()


def _be_clients(url: str, first: int, slow: int) -> None:
    token = sys.stdin.readline().strip()
    sys.stdout.write(json.dumps(anyio.run(partial(_watch_all, url, token, first=first, slow=slow))) + "\n")


if __name__ == "__main__":
    _be_clients(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
