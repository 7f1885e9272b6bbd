"""Messages between a run and a model, in a vendor-neutral format. Pure values, safe to store."""

from typing import Annotated, Literal

from msgspec import field

from metier.values import JsonValue, OmitDefault, StoredValue

type Role = Literal["system", "user", "assistant", "tool"]

type StopReason = Literal["end", "tool_calls", "max_tokens", "refusal", "stop_sequence", "other"]
"""Vendor-neutral reason why a model stopped."""


class MessagePart(StoredValue, frozen=True, kw_only=True, tag_field="kind"):
    """A part of a message."""


class TextPart(MessagePart, frozen=True, kw_only=True, tag="text"):
    text: str


class ThinkingPart(MessagePart, frozen=True, kw_only=True, tag="thinking"):
    """Reasoning that some vendors require back unchanged; not sent to other vendors."""

    text: str = ""
    signature: str = ""
    """The vendor's signature or encrypted form; returned unchanged."""
    provider: str
    """The only provider that gets the part back."""


class ToolCallPart(MessagePart, frozen=True, kw_only=True, tag="tool_call"):
    id: str
    name: str
    arguments: dict[str, JsonValue] = field(default_factory=dict)
    raw_arguments: str = ""
    """The arguments as text, if they are not a JSON object."""
    signature: str = ""
    """Data that some vendors attach to a call and expect back unchanged."""


class MediaPart(MessagePart, frozen=True, kw_only=True, tag="media"):
    """A picture or a document for the model. Its bytes are the blob `digest` of the run store."""

    media_type: str
    digest: str
    name: str = ""
    width: int = 0
    height: int = 0
    pages: int = 0
    """Number of pages of a document; 0 for a picture."""


class ToolResultPart(MessagePart, frozen=True, kw_only=True, tag="tool_result"):
    call_id: str
    name: str
    text: str
    is_error: bool = False
    media: Annotated[tuple[MediaPart, ...], OmitDefault()] = ()


type Part = TextPart | ThinkingPart | ToolCallPart | ToolResultPart | MediaPart


class Message(StoredValue, frozen=True, kw_only=True):
    role: Role
    parts: tuple[Part, ...]


class ToolSpec(StoredValue, frozen=True, kw_only=True):
    """A tool as a model sees it."""

    name: str
    description: str
    input_schema: dict[str, JsonValue]


class Usage(StoredValue, frozen=True, kw_only=True):
    """Tokens as the vendor counted them. `input_tokens` includes the cached ones."""

    input_tokens: int = 0
    output_tokens: int = 0
    cache_read_tokens: int = 0
    cache_write_tokens: int = 0
    reasoning_tokens: int = 0


class Spent(StoredValue, frozen=True, kw_only=True):
    """Cost of a step's own model calls: advice to a skill."""

    input_tokens: int = 0
    output_tokens: int = 0
    cost_usd: float = 0.0


class Shortfall(StoredValue, frozen=True, kw_only=True):
    """The outcome of a request that the offline provider could only do in part, or not at all."""

    status: Literal["failed", "timeout", "blocked", "escalated"] = "failed"
    reason: str
    message: str


class ModelReply(StoredValue, frozen=True, kw_only=True):
    """A complete reply of a model. A reply that was truncated in transit is an error instead."""

    parts: tuple[Part, ...]
    stop_reason: StopReason
    usage: Usage = Usage()
    provider: str
    model: str
    """Model name in the response, often more exact than the requested one."""
    response_id: str = ""
    finish_reason: Annotated[str, OmitDefault()] = ""
    """The vendor's word for why the model stopped; empty in journals of older versions."""
    shortfall: Shortfall | None = None
    """Only set by the offline provider."""


def user(text: str) -> Message:
    return Message(role="user", parts=(TextPart(text=text),))


def assistant(text: str) -> Message:
    return Message(role="assistant", parts=(TextPart(text=text),))
