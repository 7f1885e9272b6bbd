"""What is said between a run and a model, in a format of no vendor. Pure values, safe to store."""

from typing import Annotated, Literal

from msgspec import field

from metier.values import JsonValue, OmitDefault, StoredValue

type Role = Literal["system", "user", "assistant", "tool"]

type StopReason = Literal["end", "tool_calls", "max_tokens", "refusal", "stop_sequence", "other"]
"""Why a model stopped, whatever its vendor calls it."""


class MessagePart(StoredValue, frozen=True, kw_only=True, tag_field="kind"):
    """A part of a message."""


class TextPart(MessagePart, frozen=True, kw_only=True, tag="text"):
    text: str


class ThinkingPart(MessagePart, frozen=True, kw_only=True, tag="thinking"):
    """Reasoning that some vendors want back unchanged; shown to no other vendor."""

    text: str = ""
    signature: str = ""
    """What the vendor signed, or its encrypted form; sent back as it came."""
    provider: str
    """Only this provider gets the part back."""


class ToolCallPart(MessagePart, frozen=True, kw_only=True, tag="tool_call"):
    id: str
    name: str
    arguments: dict[str, JsonValue] = field(default_factory=dict)
    raw_arguments: str = ""
    """The text the model wrote, kept only where it is not a JSON object."""
    signature: str = ""
    """What some vendors attach to a call and want back unchanged."""


class MediaPart(MessagePart, frozen=True, kw_only=True, tag="media"):
    """A picture or a document that the model sees. Its bytes are the blob `digest` of the run store."""

    media_type: str
    digest: str
    name: str = ""
    width: int = 0
    height: int = 0
    pages: int = 0
    """Of a document; none of a picture."""


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
    """What a step paid for asking a model on its own account: advice to a skill."""

    input_tokens: int = 0
    output_tokens: int = 0
    cost_usd: float = 0.0


class Shortfall(StoredValue, frozen=True, kw_only=True):
    """What the offline backbone says of a request that it could not do, or not wholly: how the run ends, and why."""

    status: Literal["failed", "timeout", "blocked", "escalated"] = "failed"
    reason: str
    message: str


class ModelReply(StoredValue, frozen=True, kw_only=True):
    """One answer of a model, complete: a reply that was cut off in transit is an error, never a reply."""

    parts: tuple[Part, ...]
    stop_reason: StopReason
    usage: Usage = Usage()
    provider: str
    model: str
    """The name the vendor answered with, which may be more exact than the one asked for."""
    response_id: str = ""
    shortfall: Shortfall | None = None
    """Only of the offline backbone, with the result that it finishes with."""


def user(text: str) -> Message:
    return Message(role="user", parts=(TextPart(text=text),))


def assistant(text: str) -> Message:
    return Message(role="assistant", parts=(TextPart(text=text),))
