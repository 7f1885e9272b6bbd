"""Peers that flood, lie about IDs, do not read, and try to exceed their permissions over HTTP."""

import json
import re
import socket
import threading
import time
from collections import Counter
from collections.abc import Generator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx2
import pytest
from model_server import ModelServer, calls, says
from run_workspace import QUICK, Workspace, use_model
from running_server import RunningServer, serving

MODERN = "2026-07-28"
MCP = {"accept": "application/json, text/event-stream", "mcp-protocol-version": MODERN}
META: dict[str, Any] = {
    "io.modelcontextprotocol/protocolVersion": MODERN,
    "io.modelcontextprotocol/clientCapabilities": {},
}
WRONG_IDS = ("", "../../etc/passwd", "0" * 4000, "é\u0000", "a2a-000000000000")
DOORS = ("/mcp", "/a2a/rpc")
STATUS = re.compile(rb"HTTP/1\.1 (\d{3}) ")


def build_call(door: str, method: str, **params: Any) -> tuple[dict[str, str], dict[str, Any]]:
    """Return headers and body of a request to one of the endpoints."""
    name = str(params.get("name", params.get("taskId", "")))
    named = {"mcp-method": method, **({"mcp-name": name} if name.isascii() and name.isprintable() and name else {})}
    headers = {**MCP, **named} if door == "/mcp" else {"A2A-Version": "1.0"}
    sent: dict[str, Any] = {**params, "_meta": META} if door == "/mcp" else params
    return headers, {"jsonrpc": "2.0", "id": 1, "method": method, "params": sent}


def call(client: httpx2.Client, door: str, method: str, **params: Any) -> httpx2.Response:
    headers, body = build_call(door, method, **params)
    return client.post(door, json=body, headers=headers)


def tell(text: str, **more: Any) -> dict[str, Any]:
    return {"message": {"messageId": text[:20], "role": "ROLE_USER", "parts": [{"text": text}], **more}}


@pytest.mark.parametrize("door", DOORS)
def test_a_message_of_ten_megabytes_is_refused_and_wrong_ids_are_unknown(
    door: str, model: ModelServer, server: RunningServer
) -> None:
    with server.client() as client:
        if door == "/mcp":
            huge = call(client, door, "tools/call", name="run", arguments={"task": "x" * 10_000_000})
            wrong = [call(client, door, "tasks/get", taskId=each) for each in WRONG_IDS]
        else:
            huge = call(client, door, "SendMessage", **tell("x" * 10_000_000))
            wrong = [call(client, door, "GetTask", id=each) for each in WRONG_IDS]
        alive = client.get("/api/v1/health")

    assert huge.status_code == 413
    assert all(answer.status_code in (200, 400, 404) and "error" in answer.json() for answer in wrong)
    assert alive.status_code == 200
    assert model.received == []


@pytest.mark.parametrize("door", DOORS)
def test_endless_requests_are_rejected_only_for_that_user(door: str, workspace: Workspace, model: ModelServer) -> None:
    limits = {"requests_per_minute": 30}
    workspace.configure(model=use_model(model), runtime=QUICK, server=limits)
    method = "tools/list" if door == "/mcp" else "ListTasks"

    with serving(workspace.folder) as server, server.client() as client, server.client("") as stranger:
        seen = [call(client, door, method).status_code for _ in range(100)]
        card = stranger.get("/.well-known/agent-card.json")

    assert seen[:20] == [200] * 20
    assert seen.count(429) > 20
    assert card.status_code == 200


def test_thousands_of_requests_on_one_connection_are_rate_limited(workspace: Workspace, model: ModelServer) -> None:
    workspace.configure(model=use_model(model), runtime=QUICK, server={"requests_per_minute": 60})

    with serving(workspace.folder) as server, server.client() as client, server.client("") as stranger:
        with connected(server) as connection:
            flood = build_request(server, "/mcp", "tools/list") * 2_999
            last = build_request(server, "/mcp", "tools/list", connection="close")
            writer = threading.Thread(target=connection.sendall, args=[flood + last], daemon=True)
            writer.start()
            statuses = Counter(STATUS.findall(read_all(connection)))
            writer.join(100)
        health = stranger.get("/api/v1/health")
        until = time.monotonic() + 100
        while (later := call(client, "/mcp", "tools/list")).status_code == 429:
            assert time.monotonic() < until
            time.sleep(min(1.0, float(later.headers["retry-after"])))

    assert statuses.total() == 3_000
    assert set(statuses) == {b"200", b"429"}
    assert statuses[b"429"] > 2_500
    assert health.status_code == 200
    assert "result" in later.json()


@pytest.mark.parametrize("door", DOORS)
def test_unread_streams_do_not_block_other_requests(
    door: str, workspace: Workspace, model: ModelServer, server: RunningServer
) -> None:
    model.follow(calls("ask_user", question="Which?"), says("Done."))

    with ExitStack() as open_streams, server.client() as client:
        for number in range(40):
            connection = open_streams.enter_context(connected(server, room=1024))
            connection.sendall(build_start(server, door, f"Task {number}"))
        answer = call(client, door, "tools/list" if door == "/mcp" else "ListTasks").json()
        health = client.get("/api/v1/health")

    assert "result" in answer
    assert health.status_code == 200


def test_unread_answers_of_an_mcp_client_do_not_block_others(server: RunningServer) -> None:
    with ExitStack() as open_connections, server.client() as client:
        slow = [open_connections.enter_context(connected(server, room=1024)) for _ in range(5)]
        many = build_request(server, "/mcp", "tools/list") * 99
        last = build_request(server, "/mcp", "tools/list", connection="close")
        for connection in slow:
            connection.sendall(many + last)
        answer = call(client, "/mcp", "tools/list").json()
        statuses = [Counter(STATUS.findall(read_all(connection))) for connection in slow]

    assert "result" in answer
    assert statuses == [{b"200": 100}] * 5


def build_start(server: RunningServer, door: str, text: str) -> bytes:
    """Return a request that starts and follows a run."""
    if door == "/mcp":
        return build_request(server, door, "tools/call", name="run", arguments={"task": text})
    return build_request(server, door, "SendStreamingMessage", **tell(text))


def build_request(
    server: RunningServer, door: str, method: str, *, connection: str = "keep-alive", **params: Any
) -> bytes:
    """Return the bytes of a request to one of the endpoints."""
    headers, body = build_call(door, method, **params)
    data = json.dumps(body).encode()
    lines = {
        "host": urlsplit(server.url).netloc,
        "authorization": f"Bearer {server.token}",
        "connection": connection,
        "content-type": "application/json",
        "content-length": str(len(data)),
        **headers,
    }
    head = "".join(f"{name}: {value}\r\n" for name, value in lines.items())
    return f"POST {door} HTTP/1.1\r\n{head}\r\n".encode() + data


@contextmanager
def connected(server: RunningServer, *, room: int = 0) -> Generator[socket.socket]:
    """Open a connection; `room` is the size of its receive buffer."""
    parts = urlsplit(server.url)
    with socket.socket() as connection:
        connection.settimeout(60)
        if room:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, room)
        connection.connect((parts.hostname or "", parts.port or 80))
        yield connection


def read_all(connection: socket.socket) -> bytes:
    """Read until the server closes the connection."""
    pieces: list[bytes] = []
    while piece := connection.recv(1 << 20):
        pieces.append(piece)
    return b"".join(pieces)


def test_an_a2a_caller_cannot_extend_the_permissions_of_its_task(workspace: Workspace, model: ModelServer) -> None:
    workspace.configure(model=use_model(model), runtime={**QUICK, "profile": "guarded"})
    model.follow(calls("Write", path="a.txt", content="x"), says("Written."))
    wishes = {"profile": "permissive", "model": "other/model", "approve": True, "tool_approvals": {"Write": "allow"}}

    with serving(workspace.folder) as server, server.client() as client:
        sent = tell("Write a.txt", metadata=wishes)
        task = call(client, "/a2a/rpc", "SendMessage", **sent, metadata=wishes).json()["result"]["task"]
        again = call(client, "/a2a/rpc", "SendMessage", **tell("yes, allowed", taskId=task["id"])).json()

    assert task["status"]["state"] == "TASK_STATE_AUTH_REQUIRED"
    assert "error" in again
    assert not (workspace.folder / "a.txt").exists()


def test_a_task_of_one_workspace_is_unknown_in_another(
    workspace: Workspace, model: ModelServer, tmp_path: Path
) -> None:
    model.follow(says("Here."))
    other = Workspace(tmp_path / "other")
    other.folder.mkdir()
    other.configure(model=use_model(model), runtime=QUICK)

    with serving(workspace.folder) as here, serving(other.folder) as there:
        with here.client() as client:
            task = call(client, "/a2a/rpc", "SendMessage", **tell("Stay here")).json()["result"]["task"]
        with there.client() as client:
            found = call(client, "/a2a/rpc", "GetTask", id=task["id"]).json()
            listed = call(client, "/a2a/rpc", "ListTasks").json()
            read = call(client, "/mcp", "resources/read", uri=f"metier://runs/{task['id']}").json()

    assert "error" in found
    assert listed["result"].get("tasks", []) == []
    assert "error" in read
