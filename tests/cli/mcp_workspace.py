"""MCP servers for tests: the real ones installed by `./dev test`, and a hostile one."""

import json
import os
import select
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest
from run_workspace import Workspace

HOSTILE = Path(__file__).parent / "hostile_mcp_server.py"
SERVERS = Path(sys.prefix) / "servers" / "bin"
EVERYTHING = Path(sys.prefix) / "servers-node/node_modules/@modelcontextprotocol/server-everything/dist/index.js"

type Definition = dict[str, object]


def use_hostile(*args: str, **more: object) -> Definition:
    return {"command": sys.executable, "args": [str(HOSTILE), *args], **more}


def use_time() -> Definition:
    return _use_installed("mcp-server-time", "--local-timezone=UTC")


def use_git() -> Definition:
    return _use_installed("mcp-server-git", "--repository", ".")


def find_everything() -> tuple[str, str]:
    """Return Node and the server's entry file."""
    node = shutil.which("node")
    if node is None:
        pytest.skip("node is not installed: the server of npm cannot run")
    if not EVERYTHING.is_file():
        pytest.skip("the server of npm is not installed: `./dev test` does that")
    return node, str(EVERYTHING)


def define(workspace: Workspace, **servers: Mapping[str, object]) -> None:
    folder = workspace.folder / ".agent"
    folder.mkdir(exist_ok=True)
    (folder / "mcp.json").write_text(json.dumps({"mcpServers": servers}), encoding="utf-8")


def accept(workspace: Workspace, **servers: Mapping[str, object]) -> None:
    """Define servers and accept all of them."""
    define(workspace, **servers)
    assert workspace.agent("mcp", "accept", "--all", "--yes") == 0
    (workspace.folder / "starts.txt").unlink(missing_ok=True)


def get_reports(workspace: Workspace) -> list[tuple[str, str]]:
    return [
        (event["payload"]["server"], event["payload"]["state"])
        for event in workspace.events()
        if event["event_type"] == "mcp_server_reported"
    ]


def count_lines(workspace: Workspace, name: str) -> int:
    file = workspace.folder / name
    return len(file.read_text(encoding="utf-8").splitlines()) if file.exists() else 0


def _use_installed(program: str, *args: str) -> Definition:
    if not (SERVERS / program).is_file():
        pytest.skip(f"{program} is not installed: `./dev test` does that")
    return {"command": str(SERVERS / program), "args": list(args)}


def is_gone(process: int) -> bool:
    """Wait for the end of a stopped process."""
    try:
        handle = os.pidfd_open(process)
    except ProcessLookupError:
        return True
    try:
        watch = select.poll()
        watch.register(handle, select.POLLIN)
        return bool(watch.poll(60_000))
    finally:
        os.close(handle)
