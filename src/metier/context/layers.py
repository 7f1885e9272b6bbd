"""The layers of a prompt and their order, the most stable first. Pure.

The order is fixed, so that equal inputs give equal bytes and hit the vendor's prompt cache:

    system   operating instructions, base and safety, soul, user profile, agent, plugins, project instructions, skill
             catalog, the format of JSON replies
    messages facts and summary of a conversation, its latest turns; task, structured step, environment, disclosed skill
             content, input; then the run so far
"""

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from operator import attrgetter
from typing import Literal, NamedTuple

from msgspec import Struct
from msgspec.structs import fields, replace

from metier.context.outside_text import TOOL_OUTPUT, fence
from metier.decisions import StepExecutionResult
from metier.messages import MediaPart, Message, Part, TextPart, ThinkingPart, ToolCallPart, ToolResultPart, ToolSpec
from metier.providers.base import SystemBlock

type LayerName = Literal[
    "operating",
    "base",
    "safety",
    "soul",
    "profile",
    "agent",
    "plugins",
    "project",
    "catalog",
    "protocol",
    "facts",
    "summary",
    "conversation",
    "task",
    "step",
    "environment",
    "disclosed",
    "input",
    "attachments",
    "run",
]

SYSTEM_LAYERS: tuple[LayerName, ...] = (
    "operating",
    "base",
    "safety",
    "soul",
    "profile",
    "agent",
    "plugins",
    "project",
    "catalog",
    "protocol",
)

MAX_LISTED_STEPS = 40

TITLES: dict[LayerName, str] = {
    "environment": "# Environment",
    "soul": "# Who you are",
    "profile": "# Who you work for",
    "agent": "# Your role",
    "project": "# Project instructions",
    "catalog": "# Skills",
    "facts": "# Known from this conversation",
    "summary": "# Earlier in this conversation, summarised",
    "step": "# This step",
    "input": "# Input",
}

CAPS: dict[LayerName, int] = {
    "base": 40_000,
    "soul": 12_000,
    "profile": 12_000,
    "agent": 40_000,
    "plugins": 12_000,
    # Two files of 20,000 characters, the user's own and the workspace's, and their titles.
    "project": 42_000,
    "facts": 40_000,
    "summary": 12_000,
    "conversation": 60_000,
    "step": 40_000,
}
"""Limits in characters. The task and piped input are limited when they are read, skills by their settings."""


class Disclosed(Struct, frozen=True, kw_only=True):
    """A labeled piece of skill content in the prompt."""

    skill: str
    path: str
    stage: Literal[1, 2, 3]
    text: str
    digest: str = ""
    is_new: bool = False
    """True if the previous turn requested it."""


class Exchange(Struct, frozen=True, kw_only=True):
    """One turn of the run: the model's reply and all its results. It is only removed as a whole."""

    reply: Message
    results: tuple[Message, ...] = ()
    steps: tuple[StepExecutionResult, ...] = ()
    """Steps that remain as one line each when the exchange is removed."""
    number: int = 0
    """Position in the run, starting at 1, which doesn't change when others are removed. 0: never shortened."""
    skill: str = ""
    """The active skill."""
    reads: bool = False
    """True if it shows more of that skill."""
    asked: frozenset[str] = frozenset()
    """Normalized names of the returned files, to recognize repeated requests."""
    is_kept: bool = False
    """True if it repeats a result that an earlier request had lost, or contains a message of the user."""


class Prompt(Struct, frozen=True, kw_only=True):
    """All content of a turn before trimming."""

    base: str = ""
    operating: str = ""
    safety: str = ""
    soul: str = ""
    profile: str = ""
    agent: str = ""
    plugins: str = ""
    project: str = ""
    """Text of `AGENTS.md` and similar files, with the source of each piece."""
    catalog: str = ""
    protocol: str = ""
    """Reply format for models without native tool calls."""
    facts: str = ""
    """Facts from the user."""
    summary: str = ""
    """Summary of the turns before `conversation`."""
    conversation: tuple[Message, ...] = ()
    task: str
    step: str = ""
    environment: str = ""
    """Date, system, folder. Placed after everything that is the same in every run, for the prompt cache."""
    disclosed: tuple[Disclosed, ...] = ()
    input: str = ""
    attachments: tuple[MediaPart, ...] = ()
    """Images and documents after the task."""
    run: tuple[Exchange, ...] = ()
    earlier: tuple[StepExecutionResult, ...] = ()
    """Steps of removed exchanges."""
    skill: str = ""
    """The active skill. Its text is among the last to be removed."""

    def layer(self, name: LayerName) -> str:
        """Return the text of a plain-text layer, with its title."""
        text: str = getattr(self, name)
        title = TITLES.get(name)
        return f"{title}\n\n{text}" if text and title else text


class StablePart(NamedTuple):
    """The part of a prompt that usually doesn't change between turns."""

    system: tuple[SystemBlock, ...]
    opening: tuple[Message, ...]
    """The messages before the run."""
    layers: Mapping[LayerName, int]
    """Tokens per layer; `run` only counts the earlier steps."""


read_stable: Callable[[Prompt], tuple[object, ...]] = attrgetter(
    *(field.name for field in fields(Prompt) if field.name != "run")
)
"""Returns the inputs of a `StablePart`."""


def build_system(prompt: Prompt) -> tuple[SystemBlock, ...]:
    """Build the stable prefix: one block per non-empty layer, the last one marked for the vendor's cache."""
    texts = [text for name in SYSTEM_LAYERS if (text := prompt.layer(name))]
    blocks = [SystemBlock(text) for text in texts]
    if blocks:
        # One mark at the end is enough: vendors cache everything before it, and allow only a few marks per request.
        blocks[-1] = SystemBlock(blocks[-1].text, cache=True)
    return tuple(blocks)


def build_messages(prompt: Prompt, opening: tuple[Message, ...] | None = None) -> tuple[Message, ...]:
    """Build the messages: conversation, task, run. `opening` is a cached result of `build_opening`."""
    run = [message for exchange in prompt.run for message in (exchange.reply, *exchange.results)]
    return (*(build_opening(prompt) if opening is None else opening), *run)


def build_opening(prompt: Prompt, *, earlier: str | None = None) -> tuple[Message, ...]:
    """Build the messages before the run. `earlier` is a cached result of `render_steps`."""
    return (*build_memory(prompt), *prompt.conversation, build_task_message(prompt, earlier=earlier))


def build_memory(prompt: Prompt) -> tuple[Message, ...]:
    """Build the message with facts and summary of a conversation, if any."""
    pieces = [text for text in (prompt.layer("facts"), prompt.layer("summary")) if text]
    return (Message(role="user", parts=tuple(TextPart(text=piece) for piece in pieces)),) if pieces else ()


def build_task_message(prompt: Prompt, *, earlier: str | None = None) -> Message:
    pieces = [
        prompt.task,
        prompt.layer("step"),
        prompt.layer("environment"),
        *(piece.text for piece in prompt.disclosed),
        prompt.layer("input"),
    ]
    if prompt.earlier:
        pieces.append(earlier if earlier is not None else render_steps(prompt.earlier))
    return Message(role="user", parts=(*(TextPart(text=piece) for piece in pieces if piece), *prompt.attachments))


def render_steps(steps: Sequence[StepExecutionResult]) -> str:
    """Render the latest steps, one line each, with the number of omitted ones."""
    lines: list[str] = []
    if len(steps) > MAX_LISTED_STEPS:
        lines.append(f"- {len(steps) - MAX_LISTED_STEPS} steps before these")
    for step in steps[-MAX_LISTED_STEPS:]:
        code = f" (exit {step.exit_code})" if step.exit_code is not None else ""
        summary = " ".join((step.stdout_summary or step.stderr_summary).split())[:200]
        lines.append(f"- {step.step_id} {step.tool} {step.status}{code}: {summary}".rstrip(": "))
    return "# Earlier steps, summarised\n" + fence("\n".join(lines), tag=TOOL_OUTPUT)


def without_native_calls(exchange: Exchange) -> Exchange:
    """Replace native calls with text, for models without tool calls. Return the same object if it has none."""
    if not any(isinstance(part, ToolCallPart | ThinkingPart) for part in exchange.reply.parts):
        return exchange
    texts = [part for part in exchange.reply.parts if isinstance(part, TextPart)]
    called = [
        TextPart(text=f"Called {part.name} with {json.dumps(part.arguments, ensure_ascii=False)}")
        for part in exchange.reply.parts
        if isinstance(part, ToolCallPart)
    ]
    results = tuple(
        Message(role="user", parts=tuple(rendered for part in message.parts for rendered in _render_result(part)))
        for message in exchange.results
    )
    # Vendors refuse messages without content.
    reply = Message(role="assistant", parts=(*texts, *called) or (TextPart(text="(nothing)"),))
    return replace(exchange, reply=reply, results=results)


def _render_result(part: Part) -> tuple[Part, ...]:
    if not isinstance(part, ToolResultPart):
        return (part,)
    return (TextPart(text=f"Result of {part.name}:\n{fence(part.text, tag=TOOL_OUTPUT)}"), *part.media)


def hash_prefix(system: tuple[SystemBlock, ...], tools: tuple[ToolSpec, ...]) -> str:
    """Return a hash of the part of a request that a prompt cache can reuse."""
    digest = hashlib.sha256(
        "".join(json.dumps([tool.name, tool.description, tool.input_schema]) for tool in tools).encode()
    )
    for block in system:
        # The zero byte separates blocks: text that moves from one to the next changes the hash.
        digest.update(block.text.encode("utf-8", "surrogatepass") + b"\0")
    return digest.hexdigest()[:16]


class Capped(NamedTuple):
    text: str
    left_out: int
    """Number of omitted characters."""


def cap_layer(layer: LayerName, text: str) -> Capped:
    """Truncate the text of a layer to its limit, with a marker."""
    limit = CAPS.get(layer)
    if limit is None or len(text) <= limit:
        return Capped(text, 0)
    marker = f"\n[… {len(text) - limit} characters left out: at most {limit} of this layer are used …]"
    return Capped(text[:limit] + marker, len(text) - limit)


def cap_conversation(messages: Sequence[Message]) -> tuple[Message, ...]:
    """Return the latest messages within the limit, from a user message on, so that no result lacks its call."""
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
            # Pictures are limited when the messages are built.
            case MediaPart():
                pass
            case _:
                total += len(part.text) + len(part.signature)
    return total
