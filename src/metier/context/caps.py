"""How large each layer of a prompt may be. What is larger is cut, with a marker that says so. Pure."""

from collections.abc import Sequence
from typing import NamedTuple

from metier.context.layers import LayerName
from metier.messages import MediaPart, Message, TextPart, ToolCallPart, ToolResultPart

CAPS: dict[LayerName, int] = {
    "base": 40_000,
    "soul": 12_000,
    "profile": 12_000,
    "agent": 40_000,
    "plugins": 12_000,
    "project": 42_000,
    "facts": 40_000,
    "summary": 12_000,
    "conversation": 60_000,
    "step": 40_000,
}
"""In characters. The task and what is piped in are bounded where they come in, skills by their own settings."""


class Capped(NamedTuple):
    text: str
    left_out: int
    """How many characters; none where it fits."""


def cap_layer(layer: LayerName, text: str) -> Capped:
    """The beginning of the text, and a marker where the rest would be."""
    most = CAPS.get(layer)
    if most is None or len(text) <= most:
        return Capped(text, 0)
    marker = f"\n[… {len(text) - most} characters left out: at most {most} of this layer are used …]"
    return Capped(text[:most] + marker, len(text) - most)


def cap_conversation(messages: Sequence[Message]) -> tuple[Message, ...]:
    """The latest messages within the cap, beginning with one of the person; a call and its results stay together."""
    room = CAPS["conversation"]
    first = len(messages)
    for index in range(len(messages) - 1, -1, -1):
        room -= _count_characters(messages[index])
        if room < 0:
            break
        if messages[index].role == "user":
            first = index
    return tuple(messages[first:])


def _count_characters(message: Message) -> int:
    total = 0
    for part in message.parts:
        match part:
            case TextPart() | ToolResultPart():
                total += len(part.text)
            case ToolCallPart():
                total += len(part.name) + len(part.raw_arguments or str(part.arguments))
            case MediaPart():
                pass
            case _:
                total += len(part.text) + len(part.signature)
    return total
