"""What is said between a run and a model, in a format of no vendor. Pure values, safe to store."""

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, JsonValue

type Role = Literal["system", "user", "assistant", "tool"]

type StopReason = Literal["end", "tool_calls", "max_tokens", "refusal", "stop_sequence", "other"]
"""Why a model stopped, whatever its vendor calls it."""


WHEN_USED = ConfigDict(defer_build=True)
"""For a `TypeAdapter` of a module: build it when it is first used, not when the module is imported."""


class Value(BaseModel):
    """A frozen value that crosses a boundary; an unknown field is an error."""

    model_config = ConfigDict(frozen=True, extra="forbid", defer_build=True)


class MadeHere:
    """Marks a field whose text Metier makes itself, such as a hash: no text from outside, so no secret to look for."""


OwnText = Annotated[str, MadeHere()]


class TextPart(Value):
    kind: Literal["text"] = "text"
    text: str


class ThinkingPart(Value):
    """Reasoning that some vendors want back unchanged; shown to no other vendor."""

    kind: Literal["thinking"] = "thinking"
    text: str = ""
    signature: str = ""
    """What the vendor signed, or its encrypted form; sent back as it came."""
    provider: str
    """Only this provider gets the part back."""


class ToolCallPart(Value):
    kind: Literal["tool_call"] = "tool_call"
    id: str
    name: str
    arguments: dict[str, JsonValue] = Field(default_factory=dict)
    raw_arguments: str = ""
    """The text the model wrote, kept only where it is not a JSON object."""
    signature: str = ""
    """What some vendors attach to a call and want back unchanged."""


class MediaPart(Value):
    """A picture or a document that the model sees. Its bytes are the blob `digest` of the run store."""

    kind: Literal["media"] = "media"
    media_type: str
    digest: str
    name: str = ""
    width: int = 0
    height: int = 0
    pages: int = 0
    """Of a document; none of a picture."""


class ToolResultPart(Value):
    kind: Literal["tool_result"] = "tool_result"
    call_id: str
    name: str
    text: str
    is_error: bool = False
    # Left out where it is empty, so that requests without pictures have the hash that they always had.
    media: tuple[MediaPart, ...] = Field(default=(), exclude_if=lambda media: not media)


type Part = Annotated[TextPart | ThinkingPart | ToolCallPart | ToolResultPart | MediaPart, Field(discriminator="kind")]


class Message(Value):
    role: Role
    parts: tuple[Part, ...]


class ToolSpec(Value):
    """A tool as a model sees it."""

    name: str
    description: str
    input_schema: dict[str, JsonValue]


class Usage(Value):
    """Tokens as the vendor counted them. `input_tokens` includes the cached ones."""

    input_tokens: int = 0
    output_tokens: int = 0
    cache_read_tokens: int = 0
    cache_write_tokens: int = 0
    reasoning_tokens: int = 0


class Spent(Value):
    """What a step paid for asking a model on its own account: advice to a skill."""

    input_tokens: int = 0
    output_tokens: int = 0
    cost_usd: float = 0.0


class Shortfall(Value):
    """What the offline backbone says of a request that it could not do, or not wholly: how the run ends, and why."""

    status: Literal["failed", "timeout", "blocked", "escalated"] = "failed"
    reason: str
    message: str


class ModelReply(Value):
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
