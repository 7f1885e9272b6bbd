"""The interface between runs and model providers: one request in, one complete reply out.

A provider translates and sends. `providers.retry` retries, `context` keeps budgets, and `engine` interprets replies.
"""

import random
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Literal, NamedTuple, Protocol, runtime_checkable

import anyio
from msgspec import Struct
from msgspec import field as struct_field
from pydantic import JsonValue

from metier.ids import Clock, SystemClock
from metier.messages import Message, ModelReply, ToolSpec

# Dataclasses, not Structs: providers of plugins get these values and may call `dataclasses.replace` with them.


@dataclass(frozen=True, slots=True)
class SystemBlock:
    """A part of the system prompt."""

    text: str
    cache: bool = False
    """True if the stable prefix ends with this block: vendors with explicit prompt caching get a marker here."""


@dataclass(frozen=True, slots=True)
class OneTool:
    """The model must call this tool and no other."""

    name: str


type ToolChoice = Literal["auto", "required", "none"] | OneTool
"""`auto`: the model decides; `required`: it must call some tool; `none`: it must not call any."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelRequest:
    """A vendor-neutral request to a model.

    Reuse the `Message` objects of a growing history: providers cache their wire form by identity.
    """

    model: str
    messages: tuple[Message, ...]
    system: tuple[SystemBlock, ...] = ()
    tools: tuple[ToolSpec, ...] = ()
    max_tokens: int = 4096
    """Maximum length of the reply, including reasoning."""
    tool_choice: ToolChoice = "auto"
    response_schema: dict[str, JsonValue] | None = None
    """Schema of the reply's JSON text, enforced as far as the vendor supports it."""
    temperature: float | None = None
    """Omitted if None, or if the model doesn't accept one (`providers.facts`)."""
    media: Mapping[str, bytes] = field(default_factory=dict[str, bytes], repr=False)
    """The bytes of images and documents in the messages, by digest."""
    timeout_seconds: float = 120.0
    """Limit for the whole exchange, from connecting to the last byte."""
    trace_parent: str = ""
    """Sent as a header, so that a gateway can nest its spans under ours. The model doesn't see it."""


class Delta(Struct, frozen=True):
    """A piece of an incomplete reply. For display only: nothing may act on it."""

    kind: Literal["text", "thinking", "restart"]
    """`restart`: the attempt failed; discard its earlier deltas."""
    text: str = ""


type Observer = Callable[[Delta], None]
"""Receives the deltas of a reply. Called between two reads of the connection, so it must not block."""


class Provider(Protocol):
    """A model provider. Implementations only raise `ProviderError`s (see `providers.failures`)."""

    @property
    def name(self) -> str: ...

    async def reply(self, request: ModelRequest, *, observe: Observer | None = None) -> ModelReply:
        """Make one attempt and return a complete reply. With `observe` it is streamed, with the same result."""
        ...

    async def count_tokens(self, request: ModelRequest) -> int | None:
        """Return the vendor's count of input tokens, or None if the vendor can't count them."""
        ...

    async def close(self) -> None:
        """Close connections. Closing twice is allowed."""
        ...


class ServerAddress(NamedTuple):
    """Host and port of a provider's server, without its path and credentials."""

    host: str = ""
    port: int = 0
    """0 for the default port of the scheme."""


@runtime_checkable
class NamesServer(Protocol):
    """Optional interface of a provider that sends its requests to one server."""

    @property
    def server_address(self) -> ServerAddress: ...


def get_server(provider: Provider) -> ServerAddress:
    """Return the server of a provider; empty if it doesn't name one."""
    return provider.server_address if isinstance(provider, NamesServer) else ServerAddress()


@runtime_checkable
class ListsModels(Protocol):
    """Optional interface of a provider that can list its models."""

    async def list_models(self, *, seconds: float) -> tuple[str, ...]:
        """Return the models of this key in the server's order. Raises `CallFailed`, `NotFound` without such a list."""
        ...


type Sleep = Callable[[float], Awaitable[None]]


class Seams(Struct, frozen=True):
    """Clock, sleep and random numbers of model calls, replaceable in tests."""

    clock: Clock = struct_field(default_factory=SystemClock)
    sleep: Sleep = anyio.sleep
    draw: Callable[[], float] = random.random
    """Returns a number in [0, 1)."""
