"""The segments of a prompt with their origins, and the first difference of two prompts. Pure."""

import json
from collections.abc import Iterator, Sequence

from msgspec import Struct

from metier.context.budget import FittedPrompt
from metier.context.layers import SYSTEM_LAYERS, LayerName, Prompt, render_steps
from metier.messages import Message, ToolSpec
from metier.values import dump_fields

EXCERPT_BYTES = 60
"""Length of the excerpts around the first difference."""


class Segment(Struct, frozen=True, kw_only=True):
    """A part of the prompt with one origin."""

    layer: LayerName | str
    """A layer, or `tools` for the schemas in front of all layers."""
    name: str
    """The part of the layer, such as a file or a turn, or the name of the layer."""
    text: str

    @property
    def data(self) -> bytes:
        # The JSON of a model can contain half of a surrogate pair, which plain UTF-8 refuses.
        return self.text.encode("utf-8", "surrogatepass")


class Difference(Struct, frozen=True, kw_only=True):
    """The first byte in which two prompts differ. A vendor can cache everything before it."""

    offset: int
    first: str
    """Its segment in the first prompt; empty if that prompt is shorter."""
    second: str
    before: str
    """The shared bytes in front of it."""
    first_text: str
    second_text: str
    first_bytes: int
    """Length of the first prompt."""
    second_bytes: int


def list_segments(fitted: FittedPrompt) -> tuple[Segment, ...]:
    """List the parts of a request in the order in which they are sent."""
    prompt = fitted.prompt
    return tuple(
        segment
        for segment in (
            Segment(layer="tools", name="tools", text=_render_tools(fitted.tools)),
            *(Segment(layer=name, name=name, text=prompt.layer(name)) for name in SYSTEM_LAYERS),
            Segment(layer="facts", name="facts", text=prompt.layer("facts")),
            Segment(layer="summary", name="summary", text=prompt.layer("summary")),
            *_list_messages("conversation", prompt.conversation),
            *_list_task(prompt),
            *_list_run(prompt),
        )
        if segment.text
    )


def find_difference(first: Sequence[Segment], second: Sequence[Segment]) -> Difference | None:
    """Find the first difference. Return None if both prompts are identical."""
    # As bytes, because vendors cache prefixes of what is sent and not of characters.
    one, other = (b"".join(segment.data for segment in segments) for segments in (first, second))
    if one == other:
        return None
    offset = _get_offset(one, other)
    return Difference(
        offset=offset,
        first=_find_name(first, offset),
        second=_find_name(second, offset),
        before=_show(one[max(0, offset - EXCERPT_BYTES) : offset]),
        first_text=_show(one[offset : offset + EXCERPT_BYTES]),
        second_text=_show(other[offset : offset + EXCERPT_BYTES]),
        first_bytes=len(one),
        second_bytes=len(other),
    )


def _get_offset(one: bytes, other: bytes) -> int:
    # Bisection, because comparing slices is much faster than comparing single bytes.
    low, high = 0, min(len(one), len(other))
    while low < high:
        middle = (low + high + 1) // 2
        if one[low:middle] == other[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low


def _find_name(segments: Sequence[Segment], offset: int) -> str:
    end = 0
    for segment in segments:
        end += len(segment.data)
        if offset < end:
            return segment.name
    return ""


def _list_task(prompt: Prompt) -> Iterator[Segment]:
    """List the parts of the task message in the order of `layers.build_task_message`."""
    yield Segment(layer="task", name="task", text=prompt.task)
    yield Segment(layer="step", name="step", text=prompt.layer("step"))
    yield Segment(layer="environment", name="environment", text=prompt.layer("environment"))
    for piece in prompt.disclosed:
        yield Segment(layer="disclosed", name=f"disclosed {piece.skill}:{piece.path}", text=piece.text)
    yield Segment(layer="input", name="input", text=prompt.layer("input"))
    if prompt.earlier:
        yield Segment(layer="run", name="earlier steps", text=render_steps(prompt.earlier))


def _list_run(prompt: Prompt) -> Iterator[Segment]:
    for number, exchange in enumerate(prompt.run, start=1):
        yield from _list_messages(f"exchange {number}", (exchange.reply, *exchange.results), layer="run")


def _list_messages(name: str, messages: Sequence[Message], *, layer: LayerName = "conversation") -> Iterator[Segment]:
    for message in messages:
        yield Segment(layer=layer, name=f"{name}, {message.role}", text=_render_message(message))


def _render_message(message: Message) -> str:
    fields = dump_fields(message, with_defaults=False)
    return json.dumps(fields, ensure_ascii=False, separators=(",", ":"))


def _render_tools(tools: Sequence[ToolSpec]) -> str:
    specs = [[tool.name, tool.description, tool.input_schema] for tool in tools]
    return "".join(json.dumps(spec, ensure_ascii=False) + "\n" for spec in specs)


def _show(data: bytes) -> str:
    return data.decode("utf-8", "replace")
