"""The MCP servers of a run: their selection, tools, sandbox and lifetime."""

from collections.abc import AsyncGenerator, Container, Iterable, Iterator, Sequence
from contextlib import asynccontextmanager, nullcontext
from functools import partial
from pathlib import Path
from typing import Literal

import anyio
from anyio.abc import TaskGroup
from msgspec import Struct
from msgspec.structs import replace

from metier.definitions.problems import Problem
from metier.errors import ConfigError, ToolFailed, UsageError, unwrapped
from metier.events.run import McpServerReported
from metier.programs.code import ProgramCode
from metier.runtime.cleaning import SHARED_FILE, build_host_cleaner, load_host_config
from metier.runtime.confinement import get_host_level, list_writable, open_confinement, requires_sandbox, wants_sandbox
from metier.runtime.host import Host
from metier.runtime.records.pins import TOOLS, find_tools
from metier.runtime.server_pool import ServerPool
from metier.runtime.workspace.prepared_run import PreparedRun
from metier.store.base import Store
from metier.tools.base import Tool, ToolInfo
from metier.tools.mcp.offered_tools import Listing, get_server, mark_claims
from metier.tools.mcp.server_connection import (
    ConnectionLimits,
    KnownTool,
    McpTool,
    ServerConnection,
    ServerPlace,
    Target,
    build_target,
    check_sdk,
    get_server_code,
)
from metier.tools.mcp.servers import (
    AcceptedServers,
    ServerDefinition,
    choose_servers,
    expand_server,
)
from metier.tools.process.sandbox.confinement import Confinement
from metier.tools.web.web_search import add_search

LOG_FOLDER = "mcp"
"""Folder in the run's folder for the servers' error streams."""


type Enclosure = Literal["http", "outside", "full", "kernel", "none"]


class Servers(Struct, frozen=True, kw_only=True):
    """The MCP servers of a run, with their tools."""

    tools: tuple[Tool, ...] = ()
    notices: tuple[McpServerReported, ...] = ()
    not_listed: tuple[str, ...] = ()


class Trial(Struct, frozen=True):
    """The result of starting a server: its tools, or the problem."""

    listing: Listing | None = None
    problem: str = ""
    code: str = ""
    """Hash of the workspace files that the server runs."""


def open_acceptances(host: Host) -> AcceptedServers:
    return AcceptedServers(host.home, host.workspace)


def list_known_tools(host: Host) -> tuple[Tool, ...]:
    """List the tools of accepted servers for commands that show rules, without starting a server."""
    tools = tuple(KnownTool(info) for _, infos in _list_accepted(host, _choose(host)) for info in infos)
    return add_search(tools, host.settings.web_search, access=None)


@asynccontextmanager
async def open_servers(
    host: Host, store: Store, *, run: PreparedRun, confinement: Confinement
) -> AsyncGenerator[Servers]:
    """Yield the tools of every accepted server. A server starts at its first call and stops at the end of the block.

    A resumed run has the tools that it started with. Raises `ConfigError` if a variable is missing, and `UsageError` if
    the SDK is not installed.
    """
    config = load_host_config(host)
    chosen = choose_servers(config, host.settings.mcp.servers)
    broken = tuple(map(_say_unusable, config.left_out))
    # The tools as the user accepted them: a server may describe them differently later, to steer the model.
    known = dict(_list_accepted(host, chosen))
    if host.servers is not None:
        # Before anything else: a server that is no longer accepted must stop, even if this run needs none.
        await host.servers.keep_only([server for server in chosen if server.name in known])
    if not chosen:
        yield Servers(tools=_with_search(host, run, ()), notices=broken)
        return
    if TOOLS in run.pins:
        known = _group(await find_tools(run.pins, store), known)
    unaccepted = tuple(_say_not_accepted(server) for server in chosen if server.name not in known)
    not_listed = tuple(notice.server for notice in unaccepted)
    notices = (*broken, *unaccepted)
    if run.is_plan_only or not known:
        tools = _with_search(host, run, tuple(KnownTool(info) for infos in known.values() for info in infos))
        yield Servers(tools=tools, notices=notices, not_listed=not_listed)
        return
    check_sdk()
    # A server starts at its first call, so a missing variable is reported now instead of in the middle of the run.
    for server in chosen:
        if server.name in known:
            expand_server(server, host.environ)
    # A server that is kept for later runs must not write into the folder of this one.
    lasting = confinement if host.servers is None else _leave_out(confinement, run.folder)
    # The pool of the session, or one that ends with the run.
    async with _open_pool() if host.servers is None else nullcontext(host.servers) as pool:
        connections: dict[str, ServerConnection] = {}
        for server in chosen:
            if server.name in known:
                sandbox = _find_sandbox(host, server, lasting)
                is_checked = sandbox is None and confinement.level != "none"
                logs = run.folder / LOG_FOLDER
                connect = partial(_connect, server, host, logs=logs, sandbox=sandbox, is_checked=is_checked)
                connections[server.name] = await pool.get(server, connect, sandbox=sandbox)
        tools = tuple(McpTool(info, connections[name]) for name, infos in known.items() for info in infos)
        tools = _with_search(host, run, tools)
        yield Servers(tools=tools, notices=notices, not_listed=not_listed)


def _with_search(host: Host, run: PreparedRun, tools: tuple[Tool, ...]) -> tuple[Tool, ...]:
    """Add the search tool. Raises `ConfigError` if its MCP tool doesn't exist; its server may be not accepted yet."""
    options = host.settings.web_search
    added = add_search(tools, options, access=run.agent.web)
    server, _, _ = options.mcp_tool.partition("/")
    is_waiting = server in {each.name for each in _choose(host)} - {get_server(tool.info) for tool in tools}
    if options.backend == "mcp" and len(added) == len(tools) and not is_waiting:
        raise ConfigError(
            f"web_search.mcp_tool {options.mcp_tool!r} is no tool of an MCP server of this workspace",
            hint="Name one as server/tool; `agent mcp list` shows them",
        )
    return added


def _leave_out(confinement: Confinement, folder: Path) -> Confinement:
    own = folder.resolve()
    return replace(confinement, writable=tuple(path for path in confinement.writable if not path.is_relative_to(own)))


@asynccontextmanager
async def keep_servers(host: Host) -> AsyncGenerator[Host]:
    """Keep servers across the runs of a session: a started server serves later runs too, and stops at the end."""
    async with _open_pool() as pool:
        yield replace(host, servers=pool)


@asynccontextmanager
async def _open_pool() -> AsyncGenerator[ServerPool]:
    with unwrapped():
        async with anyio.create_task_group() as group:
            try:
                yield ServerPool(group)
            finally:
                # The tasks of the group hold the servers, which stop when they are canceled.
                group.cancel_scope.cancel()


async def try_servers(
    host: Host, servers: Sequence[ServerDefinition], *, is_accepting: bool = False
) -> dict[str, Trial]:
    """Start each server, list its tools and stop it. The failure of one doesn't affect the others.

    A server whose workspace files changed since it was accepted doesn't start, except with `is_accepting`, while the
    user decides whether to accept it. Raises `SandboxUnavailable` like a run.
    """
    check_sdk()
    confinement = await open_confinement(host)
    codes = {server.name: get_code(host, server).digest() for server in servers}
    trials: dict[str, Trial] = {}

    async def attempt(server: ServerDefinition) -> None:
        sandbox = _find_sandbox(host, server, confinement)
        is_checked = not is_accepting and sandbox is None and confinement.level != "none"
        connection = _connect(server, host, group, logs=None, sandbox=sandbox, is_checked=is_checked)
        try:
            trials[server.name] = Trial(await connection.list_tools(), code=codes[server.name])
        except ToolFailed as error:
            trials[server.name] = Trial(problem=error.message)
        finally:
            await connection.aclose()

    with unwrapped():
        async with anyio.create_task_group() as group:
            for server in servers:
                group.start_soon(attempt, server)
    return trials


@asynccontextmanager
async def open_server(host: Host, name: str) -> AsyncGenerator[ServerConnection]:
    """Open an accepted server of the workspace by name.

    Raises `UsageError` for an unknown server and one that isn't accepted, `SandboxUnavailable` like a run.
    """
    check_sdk()
    server = next((each for each in _choose(host) if each.name == name), None)
    if server is None or open_acceptances(host).find(server) is None:
        known = "is not accepted" if server is not None else "is not one of this workspace"
        raise UsageError(f"MCP server {name!r} {known}", hint=f"`agent mcp accept {name}`; `agent mcp list` shows all")
    confinement = await open_confinement(host)
    sandbox = _find_sandbox(host, server, confinement)
    with unwrapped():
        async with anyio.create_task_group() as group:
            is_checked = sandbox is None and confinement.level != "none"
            connection = _connect(server, host, group, logs=None, sandbox=sandbox, is_checked=is_checked)
            try:
                yield connection
            finally:
                # Shielded: after Ctrl-C the process of the server must still be stopped.
                with anyio.CancelScope(shield=True):
                    await connection.aclose()


def is_outside(host: Host, server: str) -> bool:
    """Return True if the server runs outside of the sandbox, like the user's own programs."""
    outside = host.settings.mcp.outside_sandbox
    if outside == "auto":
        return not requires_sandbox(host)
    return outside == "all" or (outside != "none" and server in outside)


def _find_sandbox(host: Host, server: ServerDefinition, confinement: Confinement) -> Confinement | None:
    """Return the sandbox of the server; None if it runs outside of any.

    With `auto`, a server that may load code from anywhere in the workspace is confined, because programs of a run can
    write that code. If the settings name such a server explicitly, it isn't started.
    """
    if not is_outside(host, server.name):
        return confinement
    is_free = confinement.level == "none" or host.settings.mcp.outside_sandbox != "auto"
    return None if is_free or not get_code(host, server).is_open else confinement


def get_code(host: Host, server: ServerDefinition) -> ProgramCode:
    """Return the workspace files that the server runs. Raises `ConfigError` if a variable is missing."""
    expanded = expand_server(server, host.environ)
    return get_server_code(expanded, host.environ, writable=list_writable(host))


def list_server_files(host: Host) -> tuple[Path, ...]:
    """List the files of accepted servers outside of the sandbox. The programs of a run must not change them."""
    accepted = open_acceptances(host)
    return tuple(
        root
        for server in _choose(host)
        if server.command and is_outside(host, server.name) and accepted.find(server) is not None
        for root in get_code(host, server).roots
        if root.exists()
    )


def get_enclosure(host: Host, server: ServerDefinition) -> Enclosure:
    """Return the sandbox that a run here would give the server. This tries the sandbox levels."""
    if server.url:
        return "http"
    is_free = is_outside(host, server.name)
    if is_free and (host.settings.mcp.outside_sandbox != "auto" or not get_code(host, server).is_open):
        return "outside"
    if not wants_sandbox(host):
        return "none" if requires_sandbox(host) else "outside"
    trial = get_host_level(host)
    if trial.works:
        return trial.level
    return "none" if requires_sandbox(host) else "outside"


def _choose(host: Host) -> tuple[ServerDefinition, ...]:
    return choose_servers(load_host_config(host), host.settings.mcp.servers)


def _list_accepted(host: Host, servers: Iterable[ServerDefinition]) -> Iterator[tuple[str, tuple[ToolInfo, ...]]]:
    accepted = open_acceptances(host)
    for server in servers:
        acceptance = accepted.find(server)
        if acceptance is not None:
            is_trusted = server.name in host.settings.mcp.trusted_servers
            yield server.name, mark_claims(acceptance.tools, is_trusted=is_trusted)


def _group(infos: Iterable[ToolInfo], accepted: Container[str]) -> dict[str, tuple[ToolInfo, ...]]:
    """Group the pinned tools by server, without servers that are no longer accepted."""
    grouped: dict[str, list[ToolInfo]] = {}
    for info in infos:
        if get_server(info) in accepted:
            grouped.setdefault(get_server(info), []).append(info)
    return {name: tuple(found) for name, found in grouped.items()}


def _say_not_accepted(server: ServerDefinition) -> McpServerReported:
    message = f"Its tools are left out until you accept it: `agent mcp accept {server.name}`"
    return McpServerReported(server=server.name, state="not_accepted", message=message)


def _say_unusable(problem: Problem) -> McpServerReported:
    advice = "Left out of this run; fix the file, then check it with `agent mcp list`"
    message = f"{problem.message}{f' ({problem.hint})' if problem.hint else ''}. {advice}"
    return McpServerReported(server=f"{SHARED_FILE}:{problem.line or 1}", state="unusable", message=message)


def _connect(
    server: ServerDefinition,
    host: Host,
    group: TaskGroup,
    *,
    logs: Path | None,
    sandbox: Confinement | None,
    is_checked: bool,
) -> ServerConnection:
    options = host.settings.mcp
    limits = ConnectionLimits(
        start_timeout_seconds=options.start_timeout_seconds, call_timeout_seconds=options.call_timeout_seconds
    )
    clean = build_host_cleaner(host).text
    spot = ServerPlace(
        workspace=host.workspace,
        environ=host.environ,
        logs=logs,
        options=options,
        clean=clean,
        confinement=sandbox,
        writable=list_writable(host),
    )

    def describe() -> Target:
        """Describe the server at each start, because the user may have accepted it again since."""
        acceptance = open_acceptances(host).find(server) if is_checked else None
        code = acceptance.code if acceptance is not None else ""
        return build_target(server, replace(spot, accepted_code=code if is_checked else None))

    return ServerConnection(server.name, describe, group, limits=limits, clean=clean)
