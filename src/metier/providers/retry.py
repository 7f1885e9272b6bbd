"""Retries of model calls: backoff, Retry-After, and fallback models.

One call of `reply_with_retries` is one turn, regardless of the number of attempts.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import NamedTuple

import anyio
from msgspec import Struct, field, structs

from metier.events.model import LlmRequestFailed, LlmRequestMeta, LlmRequestSent, LlmResponseReceived, LlmRetryScheduled
from metier.events.payload import Payload
from metier.messages import ModelReply, TextPart, ToolCallPart
from metier.providers.base import Delta, ModelRequest, Observer, Provider, Seams
from metier.providers.facts import FactBook, cost_usd
from metier.providers.failures import AuthFailed, BadRequest, CallFailed, ContextTooLong
from metier.telemetry.excerpt import cut_middle, one_line

MAX_PARTIAL_CHARACTERS = 8_000
"""Maximum length of the recorded text of an interrupted reply, which keeps its start and its end."""

type Emit = Callable[[Payload], None]

MAX_RETRY_AFTER_SECONDS = 60.0
"""Longest wait that a server may ask for; a longer one ends the retries."""

_SUMMARY_LENGTH = 200


class RetryPolicy(Struct, frozen=True, kw_only=True):
    """Number of retries and their delays: base × 2ⁿ up to the maximum, with full jitter."""

    max_retries: int = 3
    base_delay_seconds: float = 1.0
    max_delay_seconds: float = 8.0


class Candidate(NamedTuple):
    """A model and its provider."""

    provider: Provider
    model: str


class Turn(Struct, frozen=True, kw_only=True):
    """Parameters shared by the attempts of one turn."""

    number: int
    emit: Emit
    policy: RetryPolicy
    facts: FactBook
    observe: Observer | None = None
    fallbacks: Sequence[Candidate] = ()
    """Tried in this order; all within `allowed_models`."""
    seams: Seams = field(default_factory=Seams)


async def reply_with_retries(provider: Provider, request: ModelRequest, turn: Turn) -> ModelReply:
    """Return the reply of the first candidate that answers.

    Raises:
        CallFailed: No candidate answered; this is the last one's failure.
    """
    candidates = [Candidate(provider, request.model), *turn.fallbacks]
    for candidate in candidates[:-1]:
        try:
            return await _ask(candidate, request, turn)
        except CallFailed as failure:
            if not _can_fall_back(failure):
                raise
            _discard_shown_text(turn)
    return await _ask(candidates[-1], request, turn)


def back_off(policy: RetryPolicy, attempt: int, draw: Callable[[], float]) -> float:
    """Return the seconds to wait after attempt number `attempt`."""
    # The exponent is bounded because 2 ** n becomes too large for a float.
    ceiling = min(policy.max_delay_seconds, policy.base_delay_seconds * 2 ** min(attempt - 1, 62))
    # Full jitter: clients that failed together must not retry together.
    return draw() * ceiling


async def _ask(candidate: Candidate, request: ModelRequest, turn: Turn) -> ModelReply:
    asked = request if candidate.model == request.model else replace(request, model=candidate.model)
    attempt = 1
    while True:
        meta = LlmRequestMeta(provider=candidate.provider.name, model=candidate.model, attempt=attempt)
        # Before the request, so that a process that dies during it leaves a trace of a request that may have been
        # billed.
        turn.emit(LlmRequestSent(turn=turn.number, meta=meta))
        started = turn.seams.clock.monotonic()
        shown: list[str] = []
        try:
            reply = await candidate.provider.reply(asked, observe=_record_text(turn.observe, shown))
        except anyio.get_cancelled_exc_class():
            # The event keeps the text that the user has already seen.
            turn.emit(_interrupted(structs.replace(meta, latency_ms=_since(started, turn)), shown, turn))
            raise
        except CallFailed as failure:
            failed = structs.replace(meta, latency_ms=_since(started, turn))
            delay = _delay(failure, attempt, turn)
            if delay is None:
                _add_wait_to_message(failure, attempt, turn)
                turn.emit(_failed(failure, failed, turn))
                raise
            turn.emit(_scheduled(failure, failed, turn, delay=delay))
        else:
            turn.emit(_received(reply, structs.replace(meta, latency_ms=_since(started, turn)), turn))
            return reply
        _discard_shown_text(turn)
        await turn.seams.sleep(delay)
        attempt += 1


def _delay(failure: CallFailed, attempt: int, turn: Turn) -> float | None:
    """Return the seconds until the next attempt, or None if this was the last."""
    if not failure.retryable or attempt > turn.policy.max_retries:
        return None
    after = failure.retry_after_seconds
    if after is None:
        return back_off(turn.policy, attempt, turn.seams.draw)
    if after > _get_longest_wait(turn):
        return None
    # Never earlier than the server asked, with jitter so that clients don't all retry at the same moment.
    return after + turn.seams.draw() * min(turn.policy.base_delay_seconds, 1.0)


def _get_longest_wait(turn: Turn) -> float:
    return max(MAX_RETRY_AFTER_SECONDS, turn.policy.max_delay_seconds)


def _add_wait_to_message(failure: CallFailed, attempt: int, turn: Turn) -> None:
    """Add the requested wait to the message if it is the reason for giving up."""
    after, longest = failure.retry_after_seconds, _get_longest_wait(turn)
    if after is None or after <= longest or not failure.retryable or attempt > turn.policy.max_retries:
        return
    failure.message += f"; it asked to wait {after:g} seconds, longer than the limit of {longest:g} seconds"
    failure.hint = f"Run `agent resume` in {after:g} seconds, or raise runtime.retry_max_delay_seconds"


def _can_fall_back(failure: CallFailed) -> bool:
    if isinstance(failure, AuthFailed):
        return False  # the user must fix the key; another model would hide that
    # A bad request fails everywhere, but another model may have a larger window.
    return not isinstance(failure, BadRequest) or isinstance(failure, ContextTooLong)


def _record_text(observe: Observer | None, shown: list[str]) -> Observer | None:
    """Wrap the observer to record the text it gets."""
    if observe is None:
        return None  # without an observer the reply isn't streamed

    def record(delta: Delta) -> None:
        if delta.kind == "text":
            shown.append(delta.text)
        observe(delta)

    return record


def _interrupted(meta: LlmRequestMeta, shown: list[str], turn: Turn) -> LlmRequestFailed:
    """Build the event for a request that a signal, a time limit or a cancellation interrupted."""
    return LlmRequestFailed(
        turn=turn.number,
        meta=meta,
        reason="interrupted",
        message="Interrupted before the reply was complete",
        retryable=True,
        partial_text=cut_middle("".join(shown), MAX_PARTIAL_CHARACTERS),
    )


def _discard_shown_text(turn: Turn) -> None:
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
        meta=structs.replace(
            meta,
            input_tokens=usage.input_tokens,
            output_tokens=usage.output_tokens,
            cached_tokens=usage.cache_read_tokens,
            cost_usd=cost_usd(usage, turn.facts.get(meta.provider, meta.model)),
        ),
        stop_reason=reply.stop_reason,
        text_summary=one_line(text, _SUMMARY_LENGTH),
        tool_calls=tuple(part.name for part in reply.parts if isinstance(part, ToolCallPart)),
    )
