"""The context budget: estimate a prompt and trim it until it fits. Pure and deterministic.

`trimming` decides what is removed, and in which order.
"""

from collections.abc import Awaitable, Callable
from math import ceil

from msgspec import Struct, field

from metier.context.layers import (
    SYSTEM_LAYERS,
    Exchange,
    LayerName,
    Prompt,
    StablePart,
    build_messages,
    build_opening,
    build_system,
    hash_prefix,
    read_stable,
    render_steps,
)
from metier.context.tokens import MESSAGE_TOKENS, TokenCounter
from metier.context.trimming import Trim, Trimmer
from metier.errors import PromptTooLarge
from metier.messages import Message, ToolSpec
from metier.providers.base import ModelRequest, SystemBlock

# An exact count is a request of its own, so it is only made where the estimate could be wrong enough.
CLOSE_TO_LIMIT = 0.85
"""Share of the budget above which the provider is asked for an exact count."""


class LastValue[Built]:
    """A cache of one value, because most of a request doesn't change between the turns of a run."""

    def __init__(self) -> None:
        self._parts: tuple[object, ...] = ()
        self._built: Built | None = None

    def get(self, parts: tuple[object, ...], build: Callable[[], Built]) -> Built:
        """Return the last value if it was built from equal parts, or else `build()`."""
        # Cheap: comparing tuples checks the identity of the parts first.
        if self._built is None or parts != self._parts:
            self._parts, self._built = parts, build()
        return self._built


class TokenBudget(Struct, frozen=True, kw_only=True):
    max_context_tokens: int
    response_headroom_tokens: int

    @property
    def limit(self) -> int:
        return self.max_context_tokens - self.response_headroom_tokens


class PromptMemory(Struct, frozen=True, kw_only=True):
    """Caches for the prompts of one run."""

    prompts: LastValue[Prompt] = field(default_factory=LastValue[Prompt])
    """Prompts without the exchanges of the run."""
    stable: LastValue[StablePart] = field(default_factory=LastValue[StablePart])


class FittedPrompt(Struct, frozen=True, kw_only=True):
    """A prompt that fits, with its token counts and what was removed."""

    prompt: Prompt
    """The layers after trimming."""
    system: tuple[SystemBlock, ...]
    messages: tuple[Message, ...]
    tools: tuple[ToolSpec, ...]
    tokens: int
    """Estimate, corrected by `factor`."""
    estimated: int
    """Uncorrected estimate, for comparison with the vendor's count."""
    layers: dict[str, int]
    tool_schema_tokens: int
    trimmed: tuple[str, ...]
    """Everything that was removed, for display."""
    trims: tuple[Trim, ...]
    """Removals that also apply to later requests."""
    prefix_hash: str
    is_close: bool


def fit(
    prompt: Prompt,
    *,
    tools: tuple[ToolSpec, ...],
    budget: TokenBudget,
    counter: TokenCounter,
    factor: float = 1.0,
    memory: PromptMemory | None = None,
) -> FittedPrompt:
    """Trim a prompt until the estimate times `factor` is within the budget.

    `counter` and `memory` cache results for later turns of the run. Raises `PromptTooLarge` if the parts that are never
    removed don't fit.
    """
    # Estimates are summed without the factor, so the limit is divided by it instead.
    limit = int(budget.limit / factor)
    memory = memory or PromptMemory()
    stable = _get_stable(prompt, counter, memory)
    layers = _add_run(stable, prompt, counter)
    schema_tokens = counter.tools(tools)
    excess = sum(layers.values()) + schema_tokens - limit
    trimmer = Trimmer(whole=prompt, counter=counter, excess=excess, limit=limit)
    if excess > 0:
        prompt = trimmer.trim()
        stable = _get_stable(prompt, counter, memory)
        layers = _add_run(stable, prompt, counter)
    estimated = sum(layers.values()) + schema_tokens
    if estimated > limit:
        raise _too_large(prompt, ceil(estimated * factor), budget=budget)
    return FittedPrompt(
        prompt=prompt,
        system=stable.system,
        messages=build_messages(prompt, stable.opening),
        tools=tools,
        tokens=ceil(estimated * factor),
        estimated=estimated,
        layers={name: ceil(tokens * factor) for name, tokens in layers.items()},
        tool_schema_tokens=ceil(schema_tokens * factor),
        trimmed=tuple(trimmer.labels),
        trims=tuple(trimmer.trims),
        prefix_hash=hash_prefix(stable.system, tools),
        is_close=estimated * factor > CLOSE_TO_LIMIT * budget.limit,
    )


async def fit_exactly(
    fitted: FittedPrompt,
    *,
    request: ModelRequest,
    budget: TokenBudget,
    count: Callable[[ModelRequest], Awaitable[int | None]],
) -> float | None:
    """Ask the provider for an exact count if the estimate is close to the limit.

    Return the factor for another fit if the request is over the limit, or None if it can be sent.
    """
    if not fitted.is_close:
        return None
    exact = await count(request)
    if exact is None or exact <= budget.limit:
        return None
    # 2 % more, because the ratio of count and estimate changes a little when parts are removed.
    return exact / max(1, fitted.estimated) * 1.02


def _get_stable(prompt: Prompt, counter: TokenCounter, memory: PromptMemory) -> StablePart:
    def build() -> StablePart:
        opening = build_opening(prompt, earlier=_render_earlier(prompt, counter))
        return StablePart(build_system(prompt), opening, _measure_stable(prompt, counter))

    return memory.stable.get(read_stable(prompt), build)


def _add_run(stable: StablePart, prompt: Prompt, counter: TokenCounter) -> dict[LayerName, int]:
    """Return the estimated tokens per layer."""
    run = counter.total(prompt.run, lambda exchange: _exchange_tokens(exchange, counter))
    return {**stable.layers, "run": stable.layers["run"] + run}


def _measure_stable(prompt: Prompt, counter: TokenCounter) -> dict[LayerName, int]:
    layers: dict[LayerName, int] = {name: counter.text(prompt.layer(name)) for name in SYSTEM_LAYERS}
    layers["facts"] = counter.text(prompt.layer("facts"))
    layers["summary"] = counter.text(prompt.layer("summary"))
    if prompt.facts or prompt.summary:
        layers["facts" if prompt.facts else "summary"] += MESSAGE_TOKENS
    layers["conversation"] = sum(counter.message(message) for message in prompt.conversation)
    layers["task"] = MESSAGE_TOKENS + counter.text(prompt.task)
    layers["step"] = counter.text(prompt.layer("step"))
    layers["environment"] = counter.text(prompt.layer("environment"))
    layers["disclosed"] = sum(counter.text(piece.text) for piece in prompt.disclosed)
    layers["input"] = counter.text(prompt.layer("input"))
    if prompt.attachments:
        layers["attachments"] = counter.media(prompt.attachments)
    layers["run"] = counter.text(_render_earlier(prompt, counter))
    return layers


def _render_earlier(prompt: Prompt, counter: TokenCounter) -> str:
    return counter.last(prompt.earlier, render_steps) if prompt.earlier else ""


def _exchange_tokens(exchange: Exchange, counter: TokenCounter) -> int:
    return counter.message(exchange.reply) + sum(map(counter.message, exchange.results))


def _too_large(prompt: Prompt, tokens: int, *, budget: TokenBudget) -> PromptTooLarge:
    """Build the error that names the parts that don't fit."""
    skill = f", the text of skill {prompt.skill!r}" if prompt.disclosed else ""
    results = ", the newest results even when truncated" if prompt.run else ""
    return PromptTooLarge(
        f"The instructions, tools and task{skill}{results} need about {tokens} tokens, the budget is {budget.limit}",
        hint="Raise model.max_context_tokens, shorten the task, read sections instead of files, or offer fewer tools",
    )
