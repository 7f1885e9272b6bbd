"""The words in which we talk to a server of the Model Context Protocol. Knows no SDK, so it costs nothing to import."""

from collections.abc import Callable, Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import field
from typing import Protocol

import anyio
from pydantic import JsonValue

from metier.dataclass import dataclass
from metier.tools.base import Media
from metier.tools.mcp.listing import OfferedTool
from metier.tools.mcp.server_log import ServerLog
from metier.tools.process.run import Command


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """Whom to talk to: a program to start, or an address."""

    command: Command | None = None
    url: str = ""
    headers: Mapping[str, str] = field(default_factory=dict[str, str])
    log: ServerLog
    max_message_bytes: int
    timeout_seconds: float
    """How long a connection may be silent in the middle of an answer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """What a tool of a server answered; not `ok` where the server says that it failed."""

    ok: bool
    output: JsonValue
    media: tuple[Media, ...] = ()
    """Pictures that the model sees beside it."""


class SessionEnded(Exception):
    """The conversation is over in the middle of a question."""


@dataclass(slots=True)
class Ending:
    """How a conversation came to its end, for the tasks that wait for it."""

    happened: anyio.Event = field(default_factory=anyio.Event)
    reason: str = ""

    def tell(self, reason: str) -> None:
        self.reason = self.reason or reason
        self.happened.set()


class Conversation(Protocol):
    """Raises `ToolFailed` for an answer that cannot be used, `SessionEnded` where no answer will come."""

    @property
    def is_stale(self) -> bool:
        """The server said that it offers something else than it did when it was last asked."""
        ...

    async def list_tools(self) -> tuple[OfferedTool, ...]: ...

    async def ask(self, method: str, params: dict[str, JsonValue]) -> dict[str, JsonValue]:
        """The result of a request that is no call of a tool, as it came."""
        ...

    async def call(self, tool: str, arguments: dict[str, JsonValue], *, trace_parent: str = "") -> Reply: ...


type OpenConversation = Callable[[Target, Ending], AbstractAsyncContextManager[Conversation]]
