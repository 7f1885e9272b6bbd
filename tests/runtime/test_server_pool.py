"""Runs of one session share a server if their sandboxes are equal."""

import json
from datetime import UTC, datetime
from pathlib import Path

import pytest

from metier.runtime.host import Host
from metier.runtime.mcp import keep_servers, open_acceptances, open_servers
from metier.runtime.server_pool import ServerPool
from metier.runtime.workspace.agents import ResolvedAgent
from metier.runtime.workspace.prepared_run import PreparedRun
from metier.settings.sections import Settings
from metier.skills.workspace_trust import MADE_HERE
from metier.store.backend import StoreOptions, open_store
from metier.tools.base import ToolInfo
from metier.tools.mcp.server_connection import McpTool, ServerConnection
from metier.tools.mcp.servers import ServerDefinition
from metier.tools.process.sandbox.confinement import Confinement

ENCLOSED = Confinement(level="kernel")
TOOL = ToolInfo(
    id="mcp:clock/now",
    name="clock/now",
    description="The time",
    category="custom",
    input_schema={"type": "object"},
    risk="high",
    effect="opaque",
)


def build_host(folder: Path, profile: str, servers: ServerPool | None = None) -> Host:
    settings = Settings.model_validate({"runtime": {"profile": profile}})
    return Host(trust=MADE_HERE, settings=settings, workspace=folder, home=folder / "home", environ={}, servers=servers)


def accept_clock(folder: Path) -> None:
    (folder / ".agent").mkdir()
    file = folder / ".agent" / "mcp.json"
    file.write_text(json.dumps({"mcpServers": {"clock": {"command": "clock"}}}), encoding="utf-8")
    server = ServerDefinition(name="clock", command="clock")
    open_acceptances(build_host(folder, "guarded")).accept(server, (TOOL,), now=datetime.now(UTC))


async def connect_in_one_sitting(folder: Path, *runs: tuple[str, Confinement]) -> list[ServerConnection]:
    """Return the connection of each run, nested like a run and its children."""
    found: list[ServerConnection] = []

    async def enter(pool: ServerPool | None, rest: tuple[tuple[str, Confinement], ...]) -> None:
        if not rest:
            return
        profile, confinement = rest[0]
        host = build_host(folder, profile, pool)
        run = PreparedRun(folder=folder / "runs" / "r1", agent=ResolvedAgent(host=host))
        async with open_servers(host, store, run=run, confinement=confinement) as servers:
            (tool,) = servers.tools
            assert isinstance(tool, McpTool)
            found.append(tool.connection)
            await enter(pool, rest[1:])

    store = await open_store(StoreOptions(), runs=folder / "runs", environ={})
    try:
        async with keep_servers(build_host(folder, "guarded")) as sitting:
            await enter(sitting.servers, runs)
    finally:
        await store.close()
    return found


@pytest.mark.anyio
async def test_strict_run_does_not_use_a_server_started_outside_the_sandbox(tmp_path: Path) -> None:
    accept_clock(tmp_path)

    guarded, strict, again = await connect_in_one_sitting(
        tmp_path, ("guarded", ENCLOSED), ("strict", ENCLOSED), ("guarded", ENCLOSED)
    )

    assert strict is not guarded
    assert again is guarded


@pytest.mark.anyio
async def test_runs_with_different_sandboxes_share_an_unsandboxed_server(tmp_path: Path) -> None:
    accept_clock(tmp_path)

    parent, child = await connect_in_one_sitting(tmp_path, ("permissive", Confinement()), ("guarded", ENCLOSED))

    assert child is parent


@pytest.mark.anyio
async def test_sandboxed_child_does_not_stop_the_differently_sandboxed_server_of_its_parent(tmp_path: Path) -> None:
    accept_clock(tmp_path)
    open_to_more = Confinement(level="kernel", network=True)

    parent, child, again = await connect_in_one_sitting(
        tmp_path, ("strict", open_to_more), ("strict", ENCLOSED), ("strict", open_to_more)
    )

    assert child is not parent
    assert again is parent
