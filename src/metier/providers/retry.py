"""Ask a model until it answers: retries with back-off, Retry-After, and a chain of models to fall back to.

One call of `reply_with_retries` is one turn, however many attempts it takes.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import NamedTuple

import anyio
from msgspec import Struct, field

from metier.events.model import LlmRequestFailed, LlmRequestMeta, LlmRequestSent, LlmResponseReceived, LlmRetryScheduled
from metier.events.payload import Payload
from metier.messages import ModelReply, TextPart, ToolCallPart
from metier.providers.base import Delta, ModelRequest, Observer, Provider
from metier.providers.cost import cost_usd
from metier.providers.facts import FactBook
from metier.providers.failures import AuthFailed, BadRequest, CallFailed
from metier.providers.seams import Seams
from metier.telemetry.excerpt import cut_middle, one_line

MAX_PARTIAL_CHARACTERS = 8_000
"""Of a reply that was interrupted, so much is kept: its beginning and its end."""

type Emit = Callable[[Payload], None]

MAX_RETRY_AFTER_SECONDS = 60.0
"""A server that asks for more patience than this gets none: the attempt counts as the last."""

_SUMMARY_LENGTH = 200


class RetryPolicy(Struct, frozen=True, kw_only=True):
    """How often and how long to wait. Delays grow as base × 2ⁿ up to the maximum, each drawn at random from 0 up."""

    max_retries: int = 3
    base_delay_seconds: float = 1.0
    max_delay_seconds: float = 8.0


class Candidate(NamedTuple):
    """A model that may answer, and who serves it."""

    provider: Provider
    model: str


class Turn(Struct, frozen=True, kw_only=True):
    """What stays the same over the attempts of one turn."""

    number: int
    emit: Emit
    policy: RetryPolicy
    facts: FactBook
    observe: Observer | None = None
    fallbacks: Sequence[Candidate] = ()
    """Asked in this order when the one before could not answer; inside `allowed_models`."""
    seams: Seams = field(default_factory=Seams)


async def reply_with_retries(provider: Provider, request: ModelRequest, turn: Turn) -> ModelReply:
    """The reply of the first candidate that gives one.

    Raises:
        CallFailed: None did; the failure of the last one asked.
    """
    candidates = [Candidate(provider, request.model), *turn.fallbacks]
    for candidate in candidates[:-1]:
        try:
            return await _ask(candidate, request, turn)
        except CallFailed as failure:
            if not _another_may_answer(failure):
                raise
            _void_what_was_shown(turn)
    return await _ask(candidates[-1], request, turn)


def back_off(policy: RetryPolicy, attempt: int, draw: Callable[[], float]) -> float:
    """Seconds before the attempt that follows attempt number `attempt`: full jitter, bounded."""
    ceiling = min(policy.max_delay_seconds, policy.base_delay_seconds * 2 ** min(attempt - 1, 62))
    return draw() * ceiling


async def _ask(candidate: Candidate, request: ModelRequest, turn: Turn) -> ModelReply:
    asked = request if candidate.model == request.model else replace(request, model=candidate.model)
    attempt = 1
    while True:
        meta = LlmRequestMeta(provider=candidate.provider.name, model=candidate.model, attempt=attempt)
        turn.emit(LlmRequestSent(turn=turn.number, meta=meta))
        started = turn.seams.clock.monotonic()
        shown: list[str] = []
        try:
            reply = await candidate.provider.reply(asked, observe=_keep_text(turn.observe, shown))
        except anyio.get_cancelled_exc_class():
            turn.emit(_interrupted(meta.model_copy(update={"latency_ms": _since(started, turn)}), shown, turn))
            raise
        except CallFailed as failure:
            failed = meta.model_copy(update={"latency_ms": _since(started, turn)})
            delay = _delay(failure, attempt, turn)
            if delay is None:
                _name_wait(failure, attempt, turn)
                turn.emit(_failed(failure, failed, turn))
                raise
            turn.emit(_scheduled(failure, failed, turn, delay=delay))
        else:
            turn.emit(_received(reply, meta.model_copy(update={"latency_ms": _since(started, turn)}), turn))
            return reply
        _void_what_was_shown(turn)
        await turn.seams.sleep(delay)
        attempt += 1


def _delay(failure: CallFailed, attempt: int, turn: Turn) -> float | None:
    """Seconds until the next attempt, or None where there is none."""
    if not failure.retryable or attempt > turn.policy.max_retries:
        return None
    after = failure.retry_after_seconds
    if after is None:
        return back_off(turn.policy, attempt, turn.seams.draw)
    if after > _get_longest_wait(turn):
        return None
    # Never earlier than the server asked, and not all clients at the same moment.
    return after + turn.seams.draw() * min(turn.policy.base_delay_seconds, 1.0)


def _get_longest_wait(turn: Turn) -> float:
    return max(MAX_RETRY_AFTER_SECONDS, turn.policy.max_delay_seconds)


def _name_wait(failure: CallFailed, attempt: int, turn: Turn) -> None:
    """Say how long the server asked to wait, where that is why there is no further attempt."""
    after, longest = failure.retry_after_seconds, _get_longest_wait(turn)
    if after is None or after <= longest or not failure.retryable or attempt > turn.policy.max_retries:
        return
    failure.message += f"; it asks to wait {after:g} seconds, longer than the {longest:g} that a run waits"
    failure.hint = f"Go on with `agent resume` in {after:g} seconds, or raise runtime.retry_max_delay_seconds"


def _another_may_answer(failure: CallFailed) -> bool:
    """A wrong request is wrong everywhere, but for its length; a bad key is for a user to fix."""
    if isinstance(failure, AuthFailed):
        return False
    return not isinstance(failure, BadRequest) or failure.reason == "context_too_long"


def _keep_text(observe: Observer | None, shown: list[str]) -> Observer | None:
    """The observer, with the text that it is given kept; a reply without an observer is not streamed."""
    if observe is None:
        return None

    def keep(delta: Delta) -> None:
        if delta.kind == "text":
            shown.append(delta.text)
        observe(delta)

    return keep


def _interrupted(meta: LlmRequestMeta, shown: list[str], turn: Turn) -> LlmRequestFailed:
    """The request was given up: a signal, a time limit, a cancellation. It is sent again when the run continues."""
    return LlmRequestFailed(
        turn=turn.number,
        meta=meta,
        reason="interrupted",
        message="Given up before the reply was complete",
        retryable=True,
        partial_text=cut_middle("".join(shown), MAX_PARTIAL_CHARACTERS),
    )


def _void_what_was_shown(turn: Turn) -> None:
    if turn.observe is not None:
        turn.observe(Delta("restart"))


def _since(started: float, turn: Turn) -> float:
    return round((turn.seams.clock.monotonic() - started) * 1000, 3)


def _scheduled(failure: CallFailed, meta: LlmRequestMeta, turn: Turn, *, delay: float) -> LlmRetryScheduled:
    return LlmRetryScheduled(
        turn=turn.number,
        meta=meta,
        reason=failure.reason,
        delay_seconds=delay,
        retry_after_seconds=failure.retry_after_seconds,
    )


def _failed(failure: CallFailed, meta: LlmRequestMeta, turn: Turn) -> LlmRequestFailed:
    return LlmRequestFailed(
        turn=turn.number, meta=meta, reason=failure.reason, message=failure.message, retryable=failure.retryable
    )


def _received(reply: ModelReply, meta: LlmRequestMeta, turn: Turn) -> LlmResponseReceived:
    usage = reply.usage
    text = "".join(part.text for part in reply.parts if isinstance(part, TextPart))
    return LlmResponseReceived(
        turn=turn.number,
        meta=meta.model_copy(
            update={
                "input_tokens": usage.input_tokens,
                "output_tokens": usage.output_tokens,
                "cached_tokens": usage.cache_read_tokens,
                "cost_usd": cost_usd(usage, turn.facts.find(meta.provider, meta.model)),
            }
        ),
        stop_reason=reply.stop_reason,
        text_summary=one_line(text, _SUMMARY_LENGTH),
        tool_calls=tuple(part.name for part in reply.parts if isinstance(part, ToolCallPart)),
    )
