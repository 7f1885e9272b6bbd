"""A stalled reader is dropped: its buffer is limited, and others get every event."""

import socket
import time
from collections.abc import Generator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from model_server import ModelServer
from run_workspace import Workspace
from running_server import RunningServer, serving
from test_api_runs import WRITE, start, streaming, wait_until

from metier.events.model import PromptLayerCut
from metier.events.record import EventRecord, render_record
from metier.server.feed import QUEUE
from metier.telemetry.jsonl import FILE_NAME

BURST, BURSTS = QUEUE // 2, 12
LONG = "x" * 8000
WAIT_SECONDS = 90.0


@contextmanager
def connected_and_idle(server: RunningServer, run_id: str) -> Generator[socket.socket]:
    """Open a stream that is not read, with a small receive buffer."""
    address = urlsplit(server.url)
    with socket.socket() as client:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        client.connect((address.hostname, address.port))
        lines = (
            f"GET /api/v1/runs/{run_id}/events HTTP/1.1", f"Host: {address.netloc}",
            f"Authorization: Bearer {server.token}", "Accept: text/event-stream", "", "",
        )  # fmt: skip
        client.sendall("\r\n".join(lines).encode())
        yield client


def write_events(log: Path, run_id: str, first: int) -> None:
    """Write many events at once like a busy driver, so that one poll finds all."""
    text = "".join(
        render_record(EventRecord(
            run_id=run_id, trace_id="0" * 32, span_id="0" * 16, timestamp=datetime.now(UTC), seq=first + number,
            event_type=PromptLayerCut.event_type, entry=0,
            payload=PromptLayerCut(layer="project", source=LONG, left_out_characters=first + number),
        )).decode() + "\n"
        for number in range(BURST)
    )  # fmt: skip
    with log.open("a", encoding="utf-8") as stream:
        stream.write(text)


def wait_for_watchers(server: RunningServer, count: int) -> None:
    assert server.state is not None
    deadline = time.monotonic() + WAIT_SECONDS
    while server.state.feed.watchers != count:
        assert time.monotonic() < deadline, f"{server.state.feed.watchers} watchers, not {count}"
        time.sleep(0.02)


@pytest.mark.slow
def test_a_stalled_reader_is_dropped_and_others_get_every_event(workspace: Workspace, model: ModelServer) -> None:
    model.follow(WRITE)
    with serving(workspace.folder) as server:
        run_id = start(server, "write a note", profile="guarded")
        wait_until(server, run_id, "paused")
        log = workspace.folder / "runs" / run_id / FILE_NAME
        seen: list[int] = []
        with connected_and_idle(server, run_id) as idle, streaming(server, run_id) as events:
            wait_for_watchers(server, 2)
            for burst in range(BURSTS):
                write_events(log, run_id, 10_000 + burst * BURST)
                for event in events:
                    if event["event"] == PromptLayerCut.event_type:
                        seen.append(int(event["data"].split('"seq":')[1].split(",")[0]))
                    if len(seen) == (burst + 1) * BURST:
                        break
            wait_for_watchers(server, 1)
            left = b""
            while part := idle.recv(1 << 20):
                left += part

    assert seen == list(range(10_000, 10_000 + BURST * BURSTS))
    assert left.startswith(b"HTTP/1.1 200")
    assert left.count(b"event: " + PromptLayerCut.event_type.encode()) < len(seen)
