"""One server through its life: started by the first call, restarted after it died, ended with the run or sitting."""

import importlib
import importlib.util
from collections.abc import Callable
from dataclasses import field
from typing import Protocol, cast

import anyio
from anyio.abc import TaskGroup
from pydantic import JsonValue

from metier.dataclass import dataclass
from metier.errors import ToolFailed, UsageError
from metier.events import McpServerReported, Payload
from metier.extras import hint_extra
from metier.tools.base import ToolContext, ToolInfo
from metier.tools.mcp.conversation import Conversation, Ending, OpenConversation, Reply, SessionEnded, Target
from metier.tools.mcp.listing import Clean, Listing, build_listing, compare_listings
from metier.tools.process.spool import note_start

PACKAGE = "mcp"
MAX_FAILURES = 5
"""So many ends in a row without an answer in between, and the server is left alone for the rest of the run."""
_FIRST_DELAY_SECONDS = 0.5
_LONGEST_DELAY_SECONDS = 30.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectionLimits:
    start_timeout_seconds: float = 30
    call_timeout_seconds: float = 60


class Describe(Protocol):
    """Makes the target anew for each start: variables are put in when they are needed, and not kept."""

    def __call__(self) -> Target: ...


@dataclass(slots=True)
class _Life:
    """One start of the server, from the task that keeps it."""

    scope: anyio.CancelScope = field(default_factory=anyio.CancelScope)
    ready: anyio.Event = field(default_factory=anyio.Event)
    over: anyio.Event = field(default_factory=anyio.Event)
    ending: Ending = field(default_factory=Ending)
    conversation: Conversation | None = None
    listing: Listing = field(default_factory=Listing)
    problem: str = ""
    is_counted: bool = False
    """Several calls may find out about one end."""

    async def end(self) -> None:
        """Returns when every process of it is gone."""
        self.scope.cancel()
        with anyio.CancelScope(shield=True):
            await self.over.wait()


class ServerConnection:
    """Calls may come in parallel. The task group must outlive the connection: it keeps the conversation open."""

    def __init__(
        self, name: str, describe: Describe, group: TaskGroup, *, limits: ConnectionLimits, clean: Clean
    ) -> None:
        self.name = name
        self._describe = describe
        self._group = group
        self._limits = limits
        self._clean = clean
        self._life: _Life | None = None
        self._turn = anyio.Lock()
        self._failures = 0
        self._not_before = 0.0

    async def list_tools(self) -> Listing:
        """What the server offers now, started for it. Raises `ToolFailed`."""
        life = await self._get_life(_ignore)
        return life.listing

    async def ask(self, method: str, params: dict[str, JsonValue]) -> dict[str, JsonValue]:
        """A request that is no call of a tool, to a server that is started for it. Raises `ToolFailed`."""
        life = await self._get_life(_ignore)
        assert life.conversation is not None, "a life that is ready has a conversation"
        try:
            with anyio.fail_after(self._limits.call_timeout_seconds):
                return await life.conversation.ask(method, params)
        except TimeoutError as error:
            await self._end(life)
            raise ToolFailed(f"MCP server {self.name!r} did not answer {method}", code="timeout") from error
        except SessionEnded as error:
            await self._end(life)
            raise ToolFailed(f"MCP server {self.name!r} ended before it answered: {error}") from error

    async def call(self, info: ToolInfo, arguments: dict[str, JsonValue], context: ToolContext) -> Reply:
        """One call of a tool as it was accepted. Raises `ToolFailed`, with a sentence that a model can use."""
        limit = self._limits.call_timeout_seconds
        limit = limit if context.timeout_seconds is None else min(limit, context.timeout_seconds)
        life = await self._get_life(context.emit)
        try:
            with anyio.fail_after(limit):
                reply = await self._ask(life, info, arguments=arguments, context=context)
        except TimeoutError as error:
            # Ended, so that what took too long does not go on behind our back.
            await self._end(life)
            raise ToolFailed(
                f"The tool did not answer within {limit:g} s; MCP server {self.name!r} was ended", code="timeout"
            ) from error
        except SessionEnded as error:
            await self._end(life)
            message = f"MCP server {self.name!r} ended before it answered: {life.ending.reason or error}"
            context.emit(self._report("ended", message))
            raise ToolFailed(message, hint="It is started again by the next call", code="server_died") from error
        except anyio.get_cancelled_exc_class():
            # A caller that stops a turn stops what it had under way; the next call starts the server anew.
            await self._drop(life)
            raise
        self._failures = 0
        return reply

    @property
    def is_given_up(self) -> bool:
        """It ended too often to be started again."""
        return self._failures >= MAX_FAILURES

    async def _ask(
        self, life: _Life, info: ToolInfo, *, arguments: dict[str, JsonValue], context: ToolContext
    ) -> Reply:
        conversation = life.conversation
        assert conversation is not None, "a life that is ready has a conversation"
        if conversation.is_stale:
            life.listing = build_listing(self.name, await conversation.list_tools(), clean=self._clean)
        self._check_unchanged(info, life.listing, context.emit)
        if context.spool is not None and info.effect != "read":
            note_start(context.spool)
        tool = info.name.partition("/")[2]
        return await conversation.call(tool, arguments, trace_parent=context.trace_parent)

    async def aclose(self) -> None:
        life, self._life = self._life, None
        if life is not None:
            await life.end()

    async def _get_life(self, emit: Callable[[Payload], None]) -> _Life:
        async with self._turn:
            if self._life is not None and not self._life.ending.happened.is_set() and not self._life.over.is_set():
                return self._life
            if self._life is not None:
                await self._end(self._life)
            await self._wait_for_turn()
            self._life = await self._start()
            emit(self._report("started", f"{len(self._life.listing.tools)} tools"))
            return self._life

    async def _wait_for_turn(self) -> None:
        """Longer from failure to failure, so that a server that cannot live does not keep the machine busy."""
        if self.is_given_up:
            raise ToolFailed(
                f"MCP server {self.name!r} ended {self._failures} times in a row and is not started again in this run",
                code="server_died",
            )
        await anyio.sleep(max(0.0, self._not_before - anyio.current_time()))

    async def _start(self) -> _Life:
        open_conversation = load_sdk()
        life = _Life()
        self._group.start_soon(self._keep, life, open_conversation)
        try:
            with anyio.move_on_after(self._limits.start_timeout_seconds):
                await life.ready.wait()
                if life.conversation is not None:
                    return life
        except anyio.get_cancelled_exc_class():
            # No caller has it yet that could end it later.
            await life.end()
            raise
        if not life.ready.is_set():
            life.problem = f"it did not answer within {self._limits.start_timeout_seconds:g} s"
        await self._end(life)
        raise ToolFailed(f"MCP server {self.name!r} does not start: {life.problem}", code="not_started")

    async def _keep(self, life: _Life, open_conversation: OpenConversation) -> None:
        """Opens the conversation and holds it until it is ended: the SDK wants both from the same task."""
        target: Target | None = None
        try:
            with life.scope:
                target = self._describe()
                async with open_conversation(target, life.ending) as conversation:
                    offered = await conversation.list_tools()
                    life.listing = build_listing(self.name, offered, clean=self._clean)
                    life.conversation = conversation
                    life.ready.set()
                    await life.ending.happened.wait()
        except Exception as error:  # noqa: BLE001  a server and its SDK are other people's code: they must not end the run
            life.problem = life.ending.reason or _describe_failure(error)
        finally:
            tail = target.log.tail() if target is not None else ""
            life.problem = (life.problem or life.ending.reason) + (f"; its last words: {tail}" if tail else "")
            life.conversation = life.conversation if life.ready.is_set() else None
            life.over.set()
            life.ready.set()

    async def _end(self, life: _Life) -> None:
        """Counts as a failure: a caller waited for an answer and got none."""
        await self._drop(life)
        if life.is_counted:
            return
        life.is_counted = True
        self._failures += 1
        delay = min(_LONGEST_DELAY_SECONDS, _FIRST_DELAY_SECONDS * 2 ** (self._failures - 1))
        self._not_before = anyio.current_time() + delay

    async def _drop(self, life: _Life) -> None:
        await life.end()
        if self._life is life:
            self._life = None

    def _check_unchanged(self, info: ToolInfo, listing: Listing, emit: Callable[[Payload], None]) -> None:
        """A tool that is no longer what the user accepted is not called, whatever it is now."""
        found = [tool for tool in listing.tools if tool.name == info.name]
        differences = compare_listings([info], found)
        if not differences:
            return
        what = "no longer offers" if differences[info.name] == "removed" else "describes differently than before"
        message = f"MCP server {self.name!r} {what} the tool {info.name!r}, so it was not called"
        emit(self._report("changed", message, tools=(info.name,)))
        hint = f"A person can look at it and accept it with `agent mcp accept {self.name}`"
        raise ToolFailed(message, hint=hint, code="permission_denied")

    def _report(self, state: str, message: str, *, tools: tuple[str, ...] = ()) -> McpServerReported:
        return McpServerReported.model_validate(
            {"server": self.name, "state": state, "message": self._clean(message), "tools": tools}
        )


def load_sdk() -> OpenConversation:
    """Raises `UsageError` where the SDK is not installed."""
    check_sdk()
    module = importlib.import_module("metier.tools.mcp.session")
    return cast("OpenConversation", module.open_conversation)  # the seam that module is there for


def check_sdk() -> None:
    if importlib.util.find_spec(PACKAGE) is None:
        raise UsageError(f"MCP servers need the package {PACKAGE!r}", hint=hint_extra("mcp"))


def _ignore(_payload: Payload) -> None:
    return None


def _describe_failure(error: BaseException) -> str:
    """The first cause in a group of them; a failed start usually has one."""
    while isinstance(error, BaseExceptionGroup):
        error = cast("BaseExceptionGroup[BaseException]", error).exceptions[0]
    return str(error) or type(error).__name__
