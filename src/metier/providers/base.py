"""The seam between a run and the model that answers it: one request in, one complete reply out.

A provider maps and sends; it does not retry (`providers.retry`), budget (`context`) or interpret (`engine`).
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Literal, Protocol, runtime_checkable

from msgspec import Struct
from pydantic import JsonValue

from metier.messages import Message, ModelReply, ToolSpec


@dataclass(frozen=True, slots=True)
class SystemBlock:
    """One stretch of the system prompt."""

    text: str
    cache: bool = False
    """The stable prefix ends with this block: vendors with explicit prompt caching get a marker here."""


@dataclass(frozen=True, slots=True)
class OneTool:
    """The model must call this tool and no other."""

    name: str


type ToolChoice = Literal["auto", "required", "none"] | OneTool
"""`auto`: the model decides; `required`: it must call some tool; `none`: it must not call any."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelRequest:
    """Everything a model is asked with, in a format of no vendor.

    Keep the `Message` objects of a growing history from one request to the next: what was mapped once is not mapped
    again.
    """

    model: str
    messages: tuple[Message, ...]
    system: tuple[SystemBlock, ...] = ()
    tools: tuple[ToolSpec, ...] = ()
    max_tokens: int = 4096
    """Most tokens the reply may have, reasoning included."""
    tool_choice: ToolChoice = "auto"
    response_schema: dict[str, JsonValue] | None = None
    """The reply's text must be JSON of this schema, as far as the vendor can be held to it."""
    temperature: float | None = None
    """Left out where it is None and where the model takes none (`providers.facts`)."""
    media: Mapping[str, bytes] = field(default_factory=dict[str, bytes], repr=False)
    """The bytes of pictures and documents in the messages, by digest."""
    timeout_seconds: float = 120.0
    """For the whole exchange, from the connection to the last byte."""
    trace_parent: str = ""
    """Sent as a header, so that a gateway can put its spans below ours; says nothing to the model."""


class Delta(Struct, frozen=True):
    """A piece of a reply that is still under way. For showing only: nothing may act on it."""

    kind: Literal["text", "thinking", "restart"]
    """`restart`: the attempt was lost, whatever it said before is void."""
    text: str = ""


type Observer = Callable[[Delta], None]
"""Watches a reply grow. Called between two reads of the connection, so it must not block."""


class Provider(Protocol):
    """Who answers. Implementations raise `ProviderError`s only (see `providers.failures`)."""

    @property
    def name(self) -> str: ...

    async def reply(self, request: ModelRequest, *, observe: Observer | None = None) -> ModelReply:
        """One attempt. Returns only a complete reply; with `observe` it is streamed, with the same result."""
        ...

    async def count_tokens(self, request: ModelRequest) -> int | None:
        """Input tokens as the vendor counts them; None where it has no way to ask."""
        ...

    async def close(self) -> None:
        """Let go of connections. Closing twice is fine."""
        ...


@runtime_checkable
class ListsModels(Protocol):
    """What a provider may offer beside: the names of the models that this key can ask."""

    async def list_models(self, *, seconds: float) -> tuple[str, ...]:
        """In the order of the server. Raises `CallFailed`, `NotFound` where the server has no such list."""
        ...
