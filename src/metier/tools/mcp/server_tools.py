"""The tools of external servers as tools of a run: known without starting anything, started by the first call."""

import errno
import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from msgspec import Struct
from msgspec.structs import replace
from pydantic import JsonValue

from metier.errors import ConfigError, ToolFailed
from metier.programs.code import CommandLine, ProgramCode, get_program_code
from metier.programs.launcher import MCP_SERVER, use_accepted_program
from metier.programs.search import drop_writable_paths
from metier.tools.base import ToolContext, ToolInfo, ToolResult
from metier.tools.mcp.offered_tools import Clean
from metier.tools.mcp.server_connection import ServerConnection, ServerLog, Target
from metier.tools.mcp.servers import ServerDefinition, expand_server
from metier.tools.options import McpOptions
from metier.tools.process.child_environment import build_environment
from metier.tools.process.run import Command, build_own_command
from metier.tools.process.sandbox.confinement import Confinement


class McpTool(Struct, frozen=True):
    """A tool of a server. What it is called with was approved; what it answers is untrusted text."""

    info: ToolInfo
    connection: ServerConnection

    async def execute(self, arguments: dict[str, JsonValue], context: ToolContext) -> ToolResult:
        reply = await self.connection.call(self.info, arguments, context)
        if reply.ok:
            return ToolResult(ok=True, output=reply.output, media=reply.media)
        told = reply.output if isinstance(reply.output, str) else str(reply.output)
        return ToolResult(ok=False, error=told or "The tool failed and did not say why", meta={"code": "tool_failed"})


class KnownTool(Struct, frozen=True):
    """A tool that is known and cannot be called here, because nothing is started."""

    info: ToolInfo

    async def execute(self, arguments: dict[str, JsonValue], context: ToolContext) -> ToolResult:
        del arguments, context
        return ToolResult(ok=False, error="Nothing is started here", meta={"code": "permission_denied"})


class ServerPlace(Struct, frozen=True, kw_only=True):
    """The environment of servers: folder, variables, and log."""

    workspace: Path
    environ: Mapping[str, str]
    logs: Path | None
    """A folder for what servers write on their error stream."""
    options: McpOptions
    clean: Clean
    confinement: Confinement | None = None
    """Sandbox of a server process; None if it runs like the user's own programs."""
    writable: tuple[Path, ...] = ()
    """Folders that confined programs write to, the workspace first, all resolved."""
    accepted_code: str | None = None
    """The hash of its files that was accepted; None where it is not compared."""


def build_target(server: ServerDefinition, place: ServerPlace) -> Target:
    """Whom to talk to, with variables put in. Raises `ConfigError` where one is missing, or its files changed."""
    expanded = expand_server(server, place.environ)
    writable = place.writable or (place.workspace.resolve(),)
    code = get_server_code(expanded, place.environ, writable=writable)
    if place.accepted_code is not None:
        _check_code(expanded, code, place.accepted_code)
    path = place.logs / f"{server.name}.log" if place.logs is not None else None
    return Target(
        command=_build_command(expanded, place, code, writable=writable) if expanded.command else None,
        url=expanded.url,
        headers=expanded.headers,
        log=ServerLog(path, clean=place.clean),
        max_message_bytes=place.options.max_message_bytes,
        timeout_seconds=place.options.call_timeout_seconds,
    )


def get_server_code(server: ServerDefinition, environ: Mapping[str, str], *, writable: Sequence[Path]) -> ProgramCode:
    """`server` with its variables put in; the first of `writable` is the workspace, all of them resolved."""
    if not server.command:
        return ProgramCode()
    return get_program_code(_build_line(server, writable[0], {**environ, **server.env}), writable=writable)


def _build_line(server: ServerDefinition, workspace: Path, environment: Mapping[str, str]) -> CommandLine:
    words, folder = (server.command, *server.args), (workspace / server.cwd).resolve()
    return CommandLine(words=words, folder=folder, environment=environment, variables=server.env)


def _build_command(
    server: ServerDefinition, place: ServerPlace, code: ProgramCode, *, writable: Sequence[Path]
) -> Command:
    environment = {
        **build_environment(place.environ),
        # Bytecode beside its modules would change the bytes that were accepted.
        **({"PYTHONDONTWRITEBYTECODE": "1"} if code.roots else {}),
        **server.env,
    }
    confinement = _open_for(server, place)
    if confinement is not None:
        return Command(
            arguments=(server.command, *server.args),
            folder=place.workspace / server.cwd,
            environment=environment,
            confinement=confinement,
        )
    if place.accepted_code is not None:
        # A program that it starts by name must not be one that a confined program wrote.
        environment = drop_writable_paths(environment, writable=writable, but=code.roots)
    program = use_accepted_program(MCP_SERVER, _build_line(server, writable[0], environment))
    if program is None:
        raise ToolFailed(f"it could not be started: {os.strerror(errno.ENOENT)}", code="not_started")
    return build_own_command(program, folder=place.workspace / server.cwd)


def _check_code(server: ServerDefinition, code: ProgramCode, accepted: str) -> None:
    if code.is_open:
        raise ConfigError(
            f"MCP server {server.name!r} may run any code of the workspace, where programs in the sandbox write",
            hint="Put its code into a folder of its own, or leave it out of mcp.outside_sandbox",
        )
    if code.digest() != accepted:
        raise ConfigError(
            f"The files that MCP server {server.name!r} is started from changed since it was accepted",
            hint=f"Look at {', '.join(str(root) for root in code.roots)}, then run `agent mcp accept {server.name}`",
        )


def _open_for(server: ServerDefinition, place: ServerPlace) -> Confinement | None:
    """With the program to read: its file, the environment it is installed in, files that its arguments name.

    A server lives as long as a run, so the limit on processor time, which is meant for one program, does not hold.
    """
    if place.confinement is None or place.confinement.level == "none":
        return None
    limits = {name: value for name, value in place.confinement.resources.items() if name != "cpu"}
    named = (Path(word) for word in server.args if Path(word).is_absolute() and Path(word).is_file())
    return replace(place.confinement, resources=limits).opened(*_list_program(server.command, place), *named)


def _list_program(command: str, place: ServerPlace) -> Iterator[Path]:
    found = shutil.which(command, path=build_environment(place.environ).get("PATH"))
    if found is None:
        return
    for program in dict.fromkeys((Path(found), Path(found).resolve())):
        prefix = program.parent.parent
        # Not both: what lies in a folder that is shown cannot be put there once more.
        yield prefix if (prefix / "pyvenv.cfg").is_file() else program
