"""An MCP server of a run, and its tools: known from its acceptance, started by the first call, ended with the run.

A server that dies is started again. The module holds the seam to the SDK without importing it, so it is cheap to load.
"""

import errno
import importlib
import importlib.util
import os
import shutil
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Protocol, Self, cast

import anyio
import msgspec
from anyio.abc import TaskGroup
from anyio.to_thread import run_sync
from msgspec import Struct
from msgspec.structs import replace
from pydantic import JsonValue

from metier.errors import ConfigError, ToolFailed, UsageError
from metier.events.payload import Payload
from metier.events.run import McpServerReported, McpServerState
from metier.extras import hint_extra
from metier.programs.code import CommandLine, ProgramCode, get_program_code
from metier.programs.launcher import MCP_SERVER, use_accepted_program
from metier.programs.search import drop_writable_paths
from metier.tools.base import Media, ToolContext, ToolInfo, ToolResult
from metier.tools.mcp.offered_tools import Clean, Listing, OfferedTool, build_listing, compare_listings
from metier.tools.mcp.servers import ServerDefinition, expand_server
from metier.tools.options import McpOptions
from metier.tools.process.bounded_output import Capture
from metier.tools.process.child_environment import build_environment
from metier.tools.process.run import Command, build_own_command
from metier.tools.process.sandbox.confinement import Confinement
from metier.tools.process.spool import note_start

MAX_BYTES = 1_048_576
_TAIL_BYTES = 400
_MAX_LINE = 16_384


class ServerLog:
    """Writes a server's error stream to a file line by line. Without a path, only the tail is kept in memory."""

    def __init__(self, path: Path | None, *, clean: Callable[[str], str]) -> None:
        self._path = path
        self._clean = clean
        self._left = MAX_BYTES
        self._rest = b""
        self._last = Capture(2 * _TAIL_BYTES)

    def add(self, chunk: bytes) -> None:
        self._last.add(chunk)
        *lines, self._rest = (self._rest + chunk).split(b"\n")
        # A line that never ends must not fill the memory.
        if len(self._rest) > _MAX_LINE:
            lines.append(self._rest)
            self._rest = b""
        for line in lines:
            self._write(line)

    def tail(self) -> str:
        """Return the last bytes as text."""
        return self._last.output().last(_TAIL_BYTES).strip()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._rest:
            self._write(self._rest)
            self._rest = b""

    def _write(self, line: bytes) -> None:
        if self._path is None or self._left <= 0:
            return
        text = self._clean(line.decode("utf-8", "replace")).encode("utf-8", "replace") + b"\n"
        self._left -= len(text)
        if self._left <= 0:
            text = f"… the rest is left out: {MAX_BYTES} bytes are the most\n".encode()
        self._path.parent.mkdir(parents=True, exist_ok=True)
        with self._path.open("ab") as stream:
            stream.write(text)


class Target(Struct, frozen=True, kw_only=True):
    """The endpoint of a server: a command to start, or a URL."""

    command: Command | None = None
    url: str = ""
    headers: Mapping[str, str] = msgspec.field(default_factory=dict[str, str])
    log: ServerLog
    max_message_bytes: int
    timeout_seconds: float
    """Timeout of the HTTP connection, except for reading."""


class Reply(Struct, frozen=True, kw_only=True):
    """The result of a server's tool; not `ok` if the server reports a failure."""

    ok: bool
    output: JsonValue
    media: tuple[Media, ...] = ()
    """Images for the model in addition to `output`."""


class SessionEnded(Exception):
    """The conversation ended before a response arrived."""


@dataclass(slots=True)
class Ending:
    """The end of a conversation, for the tasks that wait for it."""

    happened: anyio.Event = field(default_factory=anyio.Event)
    reason: str = ""

    def report(self, reason: str) -> None:
        self.reason = self.reason or reason
        self.happened.set()


class Conversation(Protocol):
    """A conversation with a server. Raises `ToolFailed` for an invalid response, `SessionEnded` if none will arrive."""

    @property
    def is_stale(self) -> bool:
        """Return True if the server reported a change of its tools since they were last listed."""
        ...

    async def list_tools(self) -> tuple[OfferedTool, ...]: ...

    async def ask(self, method: str, params: dict[str, JsonValue]) -> dict[str, JsonValue]:
        """Send a request other than a tool call, and return its raw result."""
        ...

    async def call(
        self, tool: str, arguments: dict[str, JsonValue], *, on_progress: Callable[[str], None], trace_parent: str = ""
    ) -> Reply:
        """Call a tool. `on_progress` receives the server's reports about the call."""
        ...


type OpenConversation = Callable[[Target, Ending], AbstractAsyncContextManager[Conversation]]


PACKAGE = "mcp"
MAX_FAILURES = 5
"""Number of consecutive failures without a response, after which the server is not started again in this run."""
_FIRST_DELAY_SECONDS = 0.5
_MAX_DELAY_SECONDS = 30.0
_MAX_PROGRESS_LINES = 100
"""Number of the last progress reports to keep for an interrupted call."""


class ConnectionLimits(Struct, frozen=True, kw_only=True):
    start_timeout_seconds: float = 30
    call_timeout_seconds: float = 60


type Describe = Callable[[], Target]
"""Builds the target for each start, so that the values of variables are not kept in between."""


@dataclass(slots=True)
class _Session:
    """One start of the server, managed by its own task."""

    scope: anyio.CancelScope = field(default_factory=anyio.CancelScope)
    ready: anyio.Event = field(default_factory=anyio.Event)
    over: anyio.Event = field(default_factory=anyio.Event)
    ending: Ending = field(default_factory=Ending)
    conversation: Conversation | None = None
    listing: Listing = field(default_factory=Listing)
    problem: str = ""
    is_counted: bool = False
    """The failure was counted. Several calls may notice the same one."""

    async def end(self) -> None:
        """End the server and wait until all its processes are gone."""
        self.scope.cancel()
        # Shielded, because a canceled caller must not leave processes of the server behind.
        with anyio.CancelScope(shield=True):
            await self.over.wait()


class ServerConnection:
    """A server that is started on demand. Calls may run in parallel.

    The task group must outlive the connection, because a task in it holds the conversation open.
    """

    def __init__(
        self, name: str, describe: Describe, group: TaskGroup, *, limits: ConnectionLimits, clean: Clean
    ) -> None:
        self.name = name
        self._describe = describe
        self._group = group
        self._limits = limits
        self._clean = clean
        self._session: _Session | None = None
        self._turn = anyio.Lock()
        self._failures = 0
        self._not_before = 0.0

    async def list_tools(self) -> Listing:
        """Start the server and list its tools. Raises `ToolFailed`."""
        session = await self._get_session(_ignore)
        return session.listing

    async def ask(self, method: str, params: dict[str, JsonValue]) -> dict[str, JsonValue]:
        """Send a request other than a tool call, starting the server if needed. Raises `ToolFailed`."""
        session = await self._get_session(_ignore)
        assert session.conversation is not None, "a session that is ready has a conversation"
        try:
            with anyio.fail_after(self._limits.call_timeout_seconds):
                return await session.conversation.ask(method, params)
        except TimeoutError as error:
            await self._end(session)
            raise ToolFailed(f"MCP server {self.name!r} did not answer {method}", code="timeout") from error
        except SessionEnded as error:
            await self._end(session)
            raise ToolFailed(f"MCP server {self.name!r} ended before it answered: {error}") from error

    async def call(self, info: ToolInfo, arguments: dict[str, JsonValue], context: ToolContext) -> Reply:
        """Call a tool, if it is still as accepted. Raises `ToolFailed` with a message for the model."""
        limit = context.limit_seconds(self._limits.call_timeout_seconds)
        session = await self._get_session(context.emit)
        progress: deque[str] = deque(maxlen=_MAX_PROGRESS_LINES)
        try:
            with anyio.fail_after(limit):
                reply = await self._ask(
                    session, info, arguments=arguments, context=context, on_progress=progress.append
                )
        except TimeoutError as error:
            # End the server, so that the slow call does not continue after its result was recorded.
            await self._end(session)
            raise ToolFailed(
                f"The tool did not answer within {limit:g} s; MCP server {self.name!r} was stopped", code="timeout"
            ) from error
        except SessionEnded as error:
            await self._end(session)
            message = f"MCP server {self.name!r} ended before it answered: {session.ending.reason or error}"
            context.emit(self._report("ended", message))
            raise ToolFailed(message, hint="The next call starts it again", code="server_died") from error
        except anyio.get_cancelled_exc_class():
            # A canceled turn must not leave its call running; the next call starts the server again.
            context.keep_partial(self._clean("\n".join(progress)))
            await self._drop(session)
            raise
        self._failures = 0
        return reply

    @property
    def is_given_up(self) -> bool:
        """Return True if the server failed too often to be started again."""
        return self._failures >= MAX_FAILURES

    async def _ask(
        self,
        session: _Session,
        info: ToolInfo,
        *,
        arguments: dict[str, JsonValue],
        context: ToolContext,
        on_progress: Callable[[str], None],
    ) -> Reply:
        conversation = session.conversation
        assert conversation is not None, "a session that is ready has a conversation"
        if conversation.is_stale:
            session.listing = await self._list_tools(conversation)
        self._check_unchanged(info, session.listing, context.emit)
        # On disk before the call: after a crash, a missing note proves that the tool was not called. Reads may repeat.
        if context.spool is not None and info.effect != "read":
            note_start(context.spool)
        tool = info.name.partition("/")[2]
        return await conversation.call(tool, arguments, on_progress=on_progress, trace_parent=context.trace_parent)

    async def aclose(self) -> None:
        session, self._session = self._session, None
        if session is not None:
            await session.end()

    async def _get_session(self, emit: Callable[[Payload], None]) -> _Session:
        # One start at a time: parallel first calls must share one server.
        async with self._turn:
            session = self._session
            if session is not None and not session.ending.happened.is_set() and not session.over.is_set():
                return session
            if session is not None:
                await self._end(session)
            await self._wait_for_turn()
            self._session = await self._start()
            emit(self._report("started", f"{len(self._session.listing.tools)} tools"))
            return self._session

    async def _wait_for_turn(self) -> None:
        """Wait with exponential backoff, so that a server that keeps crashing does not keep the machine busy."""
        if self.is_given_up:
            raise ToolFailed(
                f"MCP server {self.name!r} ended {self._failures} times in a row and is not started again in this run",
                code="server_died",
            )
        await anyio.sleep(max(0.0, self._not_before - anyio.current_time()))

    async def _start(self) -> _Session:
        open_conversation = load_sdk()
        session = _Session()
        self._group.start_soon(self._keep, session, open_conversation)
        try:
            with anyio.move_on_after(self._limits.start_timeout_seconds):
                await session.ready.wait()
                if session.conversation is not None:
                    return session
        except anyio.get_cancelled_exc_class():
            # It has no owner yet that could end it later.
            await session.end()
            raise
        if not session.ready.is_set():
            session.problem = f"it did not answer within {self._limits.start_timeout_seconds:g} s"
        await self._end(session)
        raise ToolFailed(f"MCP server {self.name!r} does not start: {session.problem}", code="not_started")

    async def _list_tools(self, conversation: Conversation) -> Listing:
        """List the tools. Their schemas are untrusted and may be large, so they are checked in a thread."""
        offered = await conversation.list_tools()
        return await run_sync(partial(build_listing, self.name, offered, clean=self._clean))

    async def _keep(self, session: _Session, open_conversation: OpenConversation) -> None:
        """Hold the conversation open in one task, because the SDK must open and close it in the same task."""
        target: Target | None = None
        try:
            with session.scope:
                target = self._describe()
                async with open_conversation(target, session.ending) as conversation:
                    session.listing = await self._list_tools(conversation)
                    session.conversation = conversation
                    session.ready.set()
                    await session.ending.happened.wait()
        except Exception as error:  # noqa: BLE001  a server and its SDK are other people's code: they must not end the run
            session.problem = session.ending.reason or _describe_failure(error)
        finally:
            tail = target.log.tail() if target is not None else ""
            session.problem = (session.problem or session.ending.reason) + (f"; its last words: {tail}" if tail else "")
            session.conversation = session.conversation if session.ready.is_set() else None
            # Both, also after a failed start: `end` waits for the first, and `_start` for the second.
            session.over.set()
            session.ready.set()

    async def _end(self, session: _Session) -> None:
        """End the server and count a failure, because a caller did not get a response."""
        await self._drop(session)
        if session.is_counted:
            return
        session.is_counted = True
        self._failures += 1
        delay = min(_MAX_DELAY_SECONDS, _FIRST_DELAY_SECONDS * 2 ** (self._failures - 1))
        self._not_before = anyio.current_time() + delay

    async def _drop(self, session: _Session) -> None:
        await session.end()
        if self._session is session:
            self._session = None

    def _check_unchanged(self, info: ToolInfo, listing: Listing, emit: Callable[[Payload], None]) -> None:
        """Raise `ToolFailed` for a tool that is no longer as the user accepted it."""
        found = [tool for tool in listing.tools if tool.name == info.name]
        differences = compare_listings([info], found)
        if not differences:
            return
        what = "no longer offers" if differences[info.name] == "removed" else "describes differently than before"
        message = f"MCP server {self.name!r} {what} the tool {info.name!r}, so it was not called"
        emit(self._report("changed", message, tools=(info.name,)))
        hint = f"The user can review it and run `agent mcp accept {self.name}`"
        raise ToolFailed(message, hint=hint, code="permission_denied")

    def _report(self, state: McpServerState, message: str, *, tools: tuple[str, ...] = ()) -> McpServerReported:
        return McpServerReported(server=self.name, state=state, message=self._clean(message), tools=tools)


def load_sdk() -> OpenConversation:
    """Import the adapter of the SDK. Raises `UsageError` if the SDK is not installed."""
    check_sdk()
    module = importlib.import_module("metier.tools.mcp.sdk_session")
    return cast("OpenConversation", module.open_conversation)  # its signature is checked where it is defined


def check_sdk() -> None:
    if importlib.util.find_spec(PACKAGE) is None:
        raise UsageError(f"MCP servers need the package {PACKAGE!r}", hint=hint_extra("mcp"))


def _ignore(_payload: Payload) -> None:
    return None


def _describe_failure(error: BaseException) -> str:
    """Describe the first cause in nested exception groups; a failed start usually has only one."""
    while isinstance(error, BaseExceptionGroup):
        error = cast("BaseExceptionGroup[BaseException]", error).exceptions[0]
    return str(error) or type(error).__name__


class McpTool(Struct, frozen=True):
    """A tool of a server. Its result is untrusted text."""

    info: ToolInfo
    connection: ServerConnection

    async def execute(self, arguments: dict[str, JsonValue], context: ToolContext) -> ToolResult:
        reply = await self.connection.call(self.info, arguments, context)
        if reply.ok:
            return ToolResult(ok=True, output=reply.output, media=reply.media)
        message = reply.output if isinstance(reply.output, str) else str(reply.output)
        return ToolResult(
            ok=False, error=message or "The tool failed and did not say why", meta={"code": "tool_failed"}
        )


class KnownTool(Struct, frozen=True):
    """A known tool that cannot be called, because the server is not started here."""

    info: ToolInfo

    async def execute(self, arguments: dict[str, JsonValue], context: ToolContext) -> ToolResult:
        del arguments, context
        return ToolResult(ok=False, error="The server is not started here", meta={"code": "permission_denied"})


class ServerPlace(Struct, frozen=True, kw_only=True):
    """The environment of servers: folder, variables, and log."""

    workspace: Path
    environ: Mapping[str, str]
    logs: Path | None
    """Folder for the error streams of servers."""
    options: McpOptions
    clean: Clean
    confinement: Confinement | None = None
    """Sandbox of a server process; None if it runs like the user's own programs."""
    writable: tuple[Path, ...] = ()
    """Folders that confined programs can write, the workspace first, all resolved."""
    accepted_code: str | None = None
    """The accepted hash of the server's files; None if it is not compared."""


def build_target(server: ServerDefinition, place: ServerPlace) -> Target:
    """Build the endpoint with variables expanded. Raises `ConfigError` if one is missing or the files changed."""
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
    """Return the server's code in `writable`, whose first folder is the workspace. `server` has expanded variables."""
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
        # Bytecode files would change the accepted hash.
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
        # The server must not find programs or libraries that a confined program wrote.
        environment = drop_writable_paths(environment, writable=writable, but=code.roots)
    program = use_accepted_program(MCP_SERVER, _build_line(server, writable[0], environment))
    if program is None:
        raise ToolFailed(f"it could not be started: {os.strerror(errno.ENOENT)}", code="not_started")
    return build_own_command(program, folder=place.workspace / server.cwd)


def _check_code(server: ServerDefinition, code: ProgramCode, accepted: str) -> None:
    if code.is_open:
        raise ConfigError(
            f"MCP server {server.name!r} may run any code of the workspace, where programs in the sandbox write",
            hint="Move its code into its own folder, or remove it from mcp.outside_sandbox",
        )
    if code.digest() != accepted:
        raise ConfigError(
            f"The files that MCP server {server.name!r} is started from changed since it was accepted",
            hint=f"Review {', '.join(str(root) for root in code.roots)}, then run `agent mcp accept {server.name}`",
        )


def _open_for(server: ServerDefinition, place: ServerPlace) -> Confinement | None:
    """Return the server's sandbox, in which it can read its program, its virtual environment and its argument files.

    There is no limit on processor time, which is meant for a single command: a server lives as long as its run.
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
        # Not both: the program lies in this folder, and a path inside a granted folder must not be granted again.
        yield prefix if (prefix / "pyvenv.cfg").is_file() else program
