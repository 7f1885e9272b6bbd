"""Third-party servers over pipes and HTTP, and behavior without the SDK."""

import json
import os
import subprocess
import sys
import threading
from collections.abc import Generator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import anyio
import pytest
from mcp_workspace import accept, define, find_everything, use_hostile, use_time
from model_server import ModelServer, Reply, calls, says
from run_workspace import QUICK, Workspace, use_model

from metier.errors import ToolFailed
from metier.tools.base import ToolContext
from metier.tools.mcp.server_connection import ConnectionLimits, ServerConnection, ServerPlace, build_target
from metier.tools.mcp.servers import ServerDefinition
from metier.tools.options import McpOptions
from services.ports import find_free_ports

pytestmark = pytest.mark.slow

type Capture = pytest.CaptureFixture[str]

RUN = ("run", "Do it", "--quiet")


def get_results(model: ModelServer) -> list[str]:
    return [str(message["content"]) for message in model.received[-1]["messages"] if message["role"] == "tool"]


@contextmanager
def serving_everything(port: int = 0) -> Generator[str]:
    """Serve the npm server on a local port."""
    node, entry = find_everything()
    port = port or find_free_ports(1)[0]
    process = subprocess.Popen(
        [node, entry, "streamableHttp"],
        env={**os.environ, "PORT": str(port)}, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert process.stderr is not None
    reader = threading.Thread(target=process.stderr.read)
    try:
        for line in process.stderr:
            if "listening" in line.lower():
                break
        reader.start()
        yield f"http://127.0.0.1:{port}/mcp"
    finally:
        process.kill()
        process.wait()
        reader.join()
        process.stderr.close()


def test_a_server_of_another_language_answers_over_pipes(workspace: Workspace, model: ModelServer) -> None:
    node, entry = find_everything()
    accept(workspace, everything={"command": node, "args": [entry, "stdio"]})
    several = Reply(
        calls=(
            ("everything___get-sum", {"a": 2, "b": 40}),
            ("everything___get-structured-content", {"location": "Chicago"}),
            ("everything___get-tiny-image", {}),
            ("everything___get-sum", {"a": "two"}),
        )
    )
    model.follow(several, says("Done."))

    assert workspace.agent(*RUN) == 0

    added, structured, image, invalid = get_results(model)
    assert "42" in added
    assert "temperature" in structured
    assert "[image/png, 20 × 20 pixels: shown to you]" in image
    assert "Invalid input for 'everything___get-sum'" in invalid


def test_a_server_answers_over_http(workspace: Workspace, model: ModelServer) -> None:
    with serving_everything() as url:
        accept(workspace, everything={"type": "http", "url": url, "headers": {"X-Team": "tests"}})
        model.follow(calls("everything___echo", message="hello there"), says("Done."))

        assert workspace.agent(*RUN) == 0

    assert "hello there" in get_results(model)[0]


def test_an_unreachable_http_server_returns_an_error(workspace: Workspace, model: ModelServer) -> None:
    with serving_everything() as url:
        accept(workspace, everything={"url": url})
    model.follow(calls("everything___echo", message="anyone?"), says("Nobody there."))

    assert workspace.agent(*RUN) == 0

    assert "MCP server 'everything' does not start" in get_results(model)[0]


def test_a_restarted_http_server_is_reconnected(tmp_path: Path) -> None:
    (port,) = find_free_ports(1)
    place = ServerPlace(workspace=tmp_path, environ={}, logs=None, options=McpOptions(), clean=lambda text: text)
    server = ServerDefinition(name="e", url=f"http://127.0.0.1:{port}/mcp")
    context = ToolContext(workspace=tmp_path)

    async def converse() -> list[str]:
        told: list[str] = []
        async with anyio.create_task_group() as group:
            limits = ConnectionLimits()
            connection = ServerConnection(
                "e", lambda: build_target(server, place), group, limits=limits, clean=lambda text: text
            )
            with serving_everything(port):
                echo = next(tool for tool in (await connection.list_tools()).tools if tool.name == "e/echo")
                told.append(str((await connection.call(echo, {"message": "first"}, context)).output))
            with serving_everything(port):
                try:
                    await connection.call(echo, {"message": "lost"}, context)
                except ToolFailed as error:
                    told.append(error.code)
                told.append(str((await connection.call(echo, {"message": "again"}, context)).output))
            await connection.aclose()
        return told

    assert anyio.run(converse) == ["Echo: first", "server_died", "Echo: again"]


def test_an_endless_http_response_is_cut_off(workspace: Workspace, capsys: Capture) -> None:
    class Endless(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["content-length"]))
            self.send_response(200)
            self.send_header("content-type", "application/json")
            self.end_headers()
            try:
                while True:
                    self.wfile.write(b" " * 65_536)
            except ConnectionError:
                return

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the name is the base class's
            return None

    server = ThreadingHTTPServer(("127.0.0.1", 0), Endless)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        define(workspace, endless={"url": f"http://127.0.0.1:{server.server_address[1]}/mcp"})

        assert workspace.agent("mcp", "accept", "endless", "--yes") == 1
    finally:
        server.shutdown()
        server.server_close()

    assert "MCP server 'endless' does not start" in capsys.readouterr().err


def test_calls_of_one_reply_run_concurrently_in_one_process(workspace: Workspace, model: ModelServer) -> None:
    accept(workspace, time=use_time())
    zones = ("UTC", "Asia/Tokyo", "America/Lima")
    model.follow(Reply(calls=tuple(("time___get_current_time", {"timezone": zone}) for zone in zones)), says("Done."))

    assert workspace.agent(*RUN) == 0

    assert [zone in result for zone, result in zip(zones, get_results(model), strict=True)] == [True] * 3
    started = [e for e in workspace.events() if e["event_type"] == "mcp_server_reported"]
    assert [event["payload"]["state"] for event in started] == ["started"]


def test_a_call_concurrent_with_a_timeout_reports_that_the_server_ended(
    workspace: Workspace, model: ModelServer
) -> None:
    accept(workspace, bad=use_hostile())
    workspace.configure(model=use_model(model), runtime=QUICK, mcp={"call_timeout_seconds": 2})
    model.follow(Reply(calls=(("bad___hang", {}), ("bad___hang", {"text": "too"}))), says("Done."))

    assert workspace.agent(*RUN) == 0

    assert all("MCP server 'bad'" in result for result in get_results(model))


def test_without_the_sdk_the_command_names_the_extra_to_install(workspace: Workspace) -> None:
    define(workspace, bad=use_hostile())
    code = (
        "import sys; sys.modules['mcp'] = None\nfrom metier.cli.main import run\n"
        "sys.exit(run(['mcp', 'accept', 'bad', '--yes']))"
    )

    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=workspace.folder)

    assert done.returncode == 2
    assert "MCP servers need the package 'mcp'" in done.stderr
    assert "[mcp]'" in done.stderr


def test_a_run_without_servers_does_not_load_the_sdk(workspace: Workspace, model: ModelServer) -> None:
    model.follow(says("Done."))
    code = (
        "import sys\nfrom metier.cli.main import run\nrun(['run', 'Do it', '--quiet'])\n"
        "print(sorted({name.partition('.')[0] for name in sys.modules} & {'mcp', 'mcp_types', 'starlette'}))"
    )

    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, cwd=workspace.folder, check=True
    )

    assert done.stdout.splitlines() == ["Done.", "[]"]


def test_doctor_lists_servers_that_need_acceptance(workspace: Workspace, capsys: Capture) -> None:
    accept(workspace, known=use_hostile())
    define(workspace, known=use_hostile(), other=use_hostile("--other"))
    capsys.readouterr()

    assert workspace.agent("doctor", "--json") == 0

    found = {row["name"]: row for row in json.loads(capsys.readouterr().out) if row["area"] == "mcp"}
    assert found["known"]["state"] == "ok"
    assert found["other"]["state"] == "off"
    assert "agent mcp accept other" in found["other"]["hint"]
