"""The official conformance suite and the inspector against the MCP server of a workspace."""

import json
import os
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2
import pytest
from conformance_workspace import conforming_workspace, write_untimed_tasks
from mcp_peer import MODERN, build_params
from node_programs import find_program
from run_workspace import Workspace

from agent_command import AGENT

pytestmark = pytest.mark.slow

HERE = Path(__file__).parent
SUITE = "@modelcontextprotocol/conformance/dist/index.js"
UNTIMED = ("test_streaming_elicitation", "test_logging_tool")
"""The tools of the two checks of the suite that wait half a second for the first frame; a run may take longer."""
INSPECTOR = "@modelcontextprotocol/inspector/clients/launcher/build/index.js"


@pytest.fixture
def address(home: Path, tmp_path: Path) -> Iterator[str]:
    """The server of a workspace with the task names that the suite calls."""
    with conforming_workspace(tmp_path / "work"):
        server = subprocess.Popen(
            [sys.executable, HERE / "conformance_server.py"],
            cwd=tmp_path / "work",
            env={**os.environ, "HOME": str(home)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        with server:
            assert server.stdout is not None
            yield server.stdout.readline().strip()
            assert server.stdin is not None
            server.stdin.close()
            server.wait(100)


def test_the_conformance_suite_passes_except_for_its_baseline(address: str, tmp_path: Path) -> None:
    out = tmp_path / "out"
    baseline = HERE / "conformance-baseline.yml"

    command = [*find_program(SUITE), "server", "--url", address, "--suite", "all", "--timeout", "60000"]
    done = subprocess.run(
        [*command, "--expected-failures", baseline, "-o", out], capture_output=True, text=True, timeout=280
    )

    assert done.returncode == 0, done.stdout[-4000:]
    skills = [check for name in ("directory", "enumeration", "manifest") for check in _read_checks(out, name)]
    assert len(skills) == 45
    assert {check["status"] for check in skills} <= {"SUCCESS", "INFO", "SKIPPED"}


def _read_checks(out: Path, name: str) -> list[dict[str, Any]]:
    (file,) = out.glob(f"server-sep-2640-skills-{name}-*/checks.json")
    checks: list[dict[str, Any]] = json.loads(file.read_text(encoding="utf-8"))
    return checks


@pytest.mark.parametrize("tool", UNTIMED)
def test_a_call_sends_no_request_and_no_log_message(tool: str, address: str, tmp_path: Path) -> None:
    write_untimed_tasks(Workspace(tmp_path / "work"))
    params: dict[str, Any] = {"name": tool, "arguments": {}}
    call = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": build_params(params, {"elicitation": {}})}
    headers = {
        "accept": "application/json, text/event-stream",
        "mcp-protocol-version": MODERN,
        "mcp-method": "tools/call",
        "mcp-name": tool,
    }

    answer = httpx2.post(address, json=call, headers=headers, timeout=60, trust_env=False)

    is_stream = answer.headers["content-type"].startswith("text/event-stream")
    frames = [line.removeprefix("data:") for line in answer.text.splitlines() if line.startswith("data:")]
    messages = [json.loads(frame) for frame in (frames if is_stream else [answer.text])]
    assert "result" in messages[-1], messages
    methods = {message["method"] for message in messages if "method" in message}
    assert all(method.startswith("notifications/") for method in methods)
    assert "notifications/message" not in methods


@pytest.mark.parametrize("scenario", ["no-prefetch", "verify-digest", "verify-size", "verify-frontmatter"])
def test_a_client_scenario_of_skills_passes(scenario: str, home: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    # The suite splits the command at every space, also within a path, so it gets a script without one.
    client = tmp_path / "client"
    client.write_text(f'#!/bin/sh\nexec {shlex.join([sys.executable, str(HERE / "conformance_client.py")])} "$@"\n')
    client.chmod(0o755)

    command = [*find_program(SUITE), "client", "--scenario", f"sep-2640-client-{scenario}", "--command", str(client)]
    done = subprocess.run(
        [*command, "--timeout", "90000", "-o", out],
        capture_output=True,
        text=True,
        timeout=110,
    )

    checks = [
        check
        for file in out.glob("*/checks.json")
        for check in json.loads(file.read_text(encoding="utf-8"))
        if check["id"].startswith("sep-2640")
    ]
    assert [check["status"] for check in checks] == ["SUCCESS"], done.stdout[-3000:] + done.stderr[-2000:]


def test_the_inspector_accepts_tools_and_skills(home: Path, tmp_path: Path) -> None:
    with conforming_workspace(tmp_path / "work"):
        options = ["--cli", "--protocol-era", "modern", "--connect-timeout", "90000", "--cwd", str(tmp_path / "work")]
        start = [*find_program(INSPECTOR), *options]
        for method in (["tools/list", "--strict"], ["skills/list", "--verify"]):
            done = subprocess.run(
                [*start, "--method", *method, str(AGENT), "mcp", "serve"], capture_output=True, text=True, timeout=110
            )

            assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
