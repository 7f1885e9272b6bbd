"""Fit a prompt into the context budget. Pure and deterministic: the same prompt is trimmed the same way every time.

Dropped in this order, and only as far as needed: disclosed references, old turns of the run (their steps stay as one
line each), the previous conversation, its summary, the middle of long results. Never the system layers, the facts of
a conversation, the task or half of a pair.
"""

from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass, replace
from math import ceil

from metier.context.layers import (
    SYSTEM_LAYERS,
    Exchange,
    LayerName,
    PrefixHashes,
    Prompt,
    build_messages,
    build_system,
    render_steps,
)
from metier.context.tokens import MESSAGE_TOKENS, TokenCounter, estimate_tokens
from metier.errors import PromptTooLarge
from metier.messages import Message, Part, ToolResultPart, ToolSpec
from metier.providers.base import ModelRequest, SystemBlock
from metier.telemetry.excerpt import cut_middle

CLOSE_TO_LIMIT = 0.85
"""From here on the provider's own count is worth a request."""
DROPPED_TOGETHER = 4
"""Turns are dropped in groups, so that the prompt's prefix stays the same for several turns."""
KEPT_TURNS = 2
RESULT_CHARACTERS = (20_000, 6_000, 1_500, 400)
"""Steps in which long results are shortened when nothing else is left to drop."""
STUB = "[Removed to save room; read it again if it is needed]"
DISCLOSING_TOOLS = frozenset({"read_skill_files"})


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenBudget:
    max_context_tokens: int
    response_headroom_tokens: int

    @property
    def limit(self) -> int:
        return self.max_context_tokens - self.response_headroom_tokens


@dataclass(frozen=True, slots=True, kw_only=True)
class FittedPrompt:
    """A prompt that fits, with the account of what it costs and what had to go."""

    prompt: Prompt
    """What is left of the layers."""
    system: tuple[SystemBlock, ...]
    messages: tuple[Message, ...]
    tools: tuple[ToolSpec, ...]
    tokens: int
    """Estimated, corrected by `factor`."""
    estimated: int
    """As estimated, uncorrected: what a vendor's report is compared with."""
    layers: dict[str, int]
    tool_schema_tokens: int
    trimmed: tuple[str, ...]
    prefix_hash: str
    is_close: bool


def fit(
    prompt: Prompt,
    *,
    tools: tuple[ToolSpec, ...],
    budget: TokenBudget,
    counter: TokenCounter,
    factor: float = 1.0,
    prefixes: PrefixHashes | None = None,
) -> FittedPrompt:
    """Drop what must be dropped, in order, until the estimate times `factor` is within the budget.

    `counter` and `prefixes` remember what later turns of the same run need not go through again.
    Raises `PromptTooLarge` when the system layers, the tools and the task alone do not fit.
    """
    trimmed: list[str] = []
    limit = int(budget.limit / factor)
    layers = measure(prompt, counter)
    schema_tokens = counter.tools(tools)
    reductions = _reductions(prompt, _Room(counter, limit - schema_tokens))
    while sum(layers.values()) + schema_tokens > limit:
        reduction = next(reductions, None)
        if reduction is None:
            raise _too_large(sum(layers.values()) + schema_tokens, factor=factor, budget=budget)
        prompt, label = reduction
        trimmed.append(label)
        layers = measure(prompt, counter)
    estimated = sum(layers.values()) + schema_tokens
    system = build_system(prompt)
    return FittedPrompt(
        prompt=prompt,
        system=system,
        messages=build_messages(prompt),
        tools=tools,
        tokens=ceil(estimated * factor),
        estimated=estimated,
        layers={name: ceil(tokens * factor) for name, tokens in layers.items()},
        tool_schema_tokens=ceil(schema_tokens * factor),
        trimmed=tuple(trimmed),
        prefix_hash=(prefixes or PrefixHashes()).of(system, tools),
        is_close=estimated * factor > CLOSE_TO_LIMIT * budget.limit,
    )


async def fit_exactly(
    fitted: FittedPrompt,
    *,
    request: ModelRequest,
    budget: TokenBudget,
    count: Callable[[ModelRequest], Awaitable[int | None]],
) -> float | None:
    """Ask the provider where the estimate is close to the limit.

    Gives the factor to fit again with when the request is over the limit, None when it can be sent.
    """
    if not fitted.is_close:
        return None
    exact = await count(request)
    if exact is None or exact <= budget.limit:
        return None
    return exact / max(1, fitted.estimated) * 1.02


def measure(prompt: Prompt, counter: TokenCounter) -> dict[LayerName, int]:
    """Estimated tokens per layer."""
    layers: dict[LayerName, int] = {name: counter.text(prompt.layer(name)) for name in SYSTEM_LAYERS}
    layers["facts"] = counter.text(prompt.layer("facts"))
    layers["summary"] = counter.text(prompt.layer("summary"))
    if prompt.facts or prompt.summary:
        layers["facts" if prompt.facts else "summary"] += MESSAGE_TOKENS
    layers["conversation"] = sum(counter.message(message) for message in prompt.conversation)
    layers["task"] = MESSAGE_TOKENS + counter.text(prompt.task)
    layers["step"] = counter.text(prompt.layer("step"))
    layers["disclosed"] = sum(counter.text(piece.text) for piece in prompt.disclosed)
    layers["input"] = counter.text(prompt.layer("input"))
    layers["run"] = estimate_tokens(render_steps(prompt.earlier)) if prompt.earlier else 0
    layers["run"] += counter.total(prompt.run, lambda exchange: _exchange_tokens(exchange, counter))
    return layers


def _exchange_tokens(exchange: Exchange, counter: TokenCounter) -> int:
    return counter.message(exchange.reply) + sum(map(counter.message, exchange.results))


type Reduction = tuple[Prompt, str]
"""The prompt after one thing was dropped, and what it was."""


@dataclass(frozen=True, slots=True)
class _Room:
    """What is left for the layers."""

    counter: TokenCounter
    tokens: int

    def excess(self, prompt: Prompt) -> int:
        return sum(measure(prompt, self.counter).values()) - self.tokens

    def cost(self, exchange: Exchange) -> int:
        return _exchange_tokens(exchange, self.counter)


def _reductions(prompt: Prompt, room: _Room) -> Iterator[Reduction]:
    """Ever smaller prompts, the least critical thing gone first."""
    for step in (_drop_disclosed, _stub_disclosing_results, _drop_turns, _drop_conversation, _shorten_results):
        for smaller, label in step(prompt, room):
            prompt = smaller
            yield smaller, label


def _drop_disclosed(prompt: Prompt, _: _Room) -> Iterator[Reduction]:
    """References first, script descriptors next; the overview of the skill in charge stays longest. Oldest first."""
    for stage in (2, 3, 1):
        for piece in [piece for piece in prompt.disclosed if piece.stage == stage]:
            prompt = replace(prompt, disclosed=tuple(other for other in prompt.disclosed if other is not piece))
            yield prompt, f"disclosed:{piece.skill}:{piece.path}"


def _stub_disclosing_results(prompt: Prompt, _: _Room) -> Iterator[Reduction]:
    """References that came as a tool result lose their text; the call and its result stay a pair."""
    for index, exchange in enumerate(prompt.run):
        if not any(_discloses(part) for message in exchange.results for part in message.parts):
            continue
        results = tuple(_map_results(message, _stub) for message in exchange.results)
        run = (*prompt.run[:index], replace(exchange, results=results), *prompt.run[index + 1 :])
        prompt = replace(prompt, run=run)
        yield prompt, f"disclosed:turn {index + 1}"


def _drop_turns(prompt: Prompt, room: _Room) -> Iterator[Reduction]:
    """Oldest first, in groups; the first drop is as large as it must be, so a long run is not trimmed step by step."""
    over = room.excess(prompt)
    while len(prompt.run) > KEPT_TURNS:
        count = _turns_to_drop(prompt, over, room)
        gone, kept = prompt.run[:count], prompt.run[count:]
        steps = tuple(step for exchange in gone for step in exchange.steps)
        prompt = replace(prompt, run=kept, earlier=(*prompt.earlier, *steps))
        yield prompt, f"run:{count} turns"
        over = room.excess(prompt)
    if prompt.earlier:
        prompt = replace(prompt, earlier=())
        yield prompt, "run:summaries"


def _turns_to_drop(prompt: Prompt, over: int, room: _Room) -> int:
    most = len(prompt.run) - KEPT_TURNS
    count, saved = 0, 0
    while count < most and (saved < over or count % DROPPED_TOGETHER):
        saved += room.cost(prompt.run[count])
        count += 1
    return max(count, min(DROPPED_TOGETHER, most))


def _drop_conversation(prompt: Prompt, _: _Room) -> Iterator[Reduction]:
    while prompt.conversation:
        rest = prompt.conversation[2:]
        while rest and rest[0].role != "user":
            rest = rest[1:]
        prompt = replace(prompt, conversation=rest)
        yield prompt, "conversation:oldest"
    if prompt.summary:
        yield replace(prompt, summary=""), "conversation:summary"


def _shorten_results(prompt: Prompt, _: _Room) -> Iterator[Reduction]:
    for most in RESULT_CHARACTERS:
        run = tuple(_shorten_exchange(exchange, most) for exchange in prompt.run)
        if run != prompt.run:
            prompt = replace(prompt, run=run)
            yield prompt, f"run:results over {most} characters"


def _shorten_exchange(exchange: Exchange, most: int) -> Exchange:
    def shorten(part: ToolResultPart) -> ToolResultPart:
        return part.model_copy(update={"text": cut_middle(part.text, most)}) if len(part.text) > most else part

    return replace(exchange, results=tuple(_map_results(message, shorten) for message in exchange.results))


def _map_results(message: Message, change: Callable[[ToolResultPart], ToolResultPart]) -> Message:
    parts: tuple[Part, ...] = tuple(
        change(part) if isinstance(part, ToolResultPart) else part for part in message.parts
    )
    return message if parts == message.parts else message.model_copy(update={"parts": parts})


def _discloses(part: Part) -> bool:
    return isinstance(part, ToolResultPart) and part.name in DISCLOSING_TOOLS and part.text != STUB


def _stub(part: ToolResultPart) -> ToolResultPart:
    return part.model_copy(update={"text": STUB}) if part.name in DISCLOSING_TOOLS else part


def _too_large(estimated: int, *, factor: float, budget: TokenBudget) -> PromptTooLarge:
    return PromptTooLarge(
        f"The instructions, tools and task need about {ceil(estimated * factor)} tokens, the budget is {budget.limit}",
        hint="Raise model.max_context_tokens, shorten the task, or offer fewer tools",
    )
