"""Retries and fallback, in tables, with a controlled clock and randomness."""

from datetime import UTC, datetime

import pytest

from metier.events.model import LlmRequestFailed, LlmRequestSent, LlmResponseReceived, LlmRetryScheduled
from metier.events.payload import Payload
from metier.messages import ModelReply, TextPart, user
from metier.providers.base import Delta, ModelRequest, Seams
from metier.providers.facts import load_facts
from metier.providers.failures import (
    AuthFailed,
    BadRequest,
    CallFailed,
    ConnectionLost,
    ContextTooLong,
    NotFound,
    Overloaded,
    QuotaExhausted,
    RateLimited,
    ReplyBroken,
    ServerFailed,
    TimedOut,
)
from metier.providers.retry import (
    Candidate,
    RetryPolicy,
    Turn,
    back_off,
    reply_with_retries,
)
from metier.testing.scripted import ScriptedProvider, fails, says

pytestmark = pytest.mark.anyio

REQUEST = ModelRequest(model="claude-haiku-4-5", messages=(user("Hello"),))


class Stage:
    """A clock that moves only during sleeps, fixed randomness, and the recorded events."""

    def __init__(self, *, draw: float = 0.5, policy: RetryPolicy | None = None) -> None:
        self.slept: list[float] = []
        self.events: list[Payload] = []
        self.shown: list[Delta] = []
        self._draw = draw
        self._policy = policy or RetryPolicy()

    def now(self) -> datetime:
        return datetime(2026, 11, 15, tzinfo=UTC)

    def monotonic(self) -> float:
        return sum(self.slept)

    async def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)

    async def ask(self, provider: ScriptedProvider, *fallbacks: Candidate) -> ModelReply:
        turn = Turn(
            number=4,
            emit=self.events.append,
            policy=self._policy,
            facts=load_facts(),
            observe=self.shown.append,
            fallbacks=fallbacks,
            seams=Seams(clock=self, sleep=self.sleep, draw=lambda: self._draw),
        )
        return await reply_with_retries(provider, REQUEST, turn)

    def names(self) -> list[str]:
        return [event.event_type for event in self.events]


@pytest.mark.parametrize(
    "failure",
    [
        RateLimited("x"),
        Overloaded("x"),
        ServerFailed("x"),
        TimedOut("x"),
        ConnectionLost("x"),
        ReplyBroken("x"),
    ],
    ids=lambda failure: failure.reason,
)
async def test_transient_failures_are_retried(failure: CallFailed) -> None:
    stage, provider = Stage(), ScriptedProvider(fails(failure), says("Hi"), name="anthropic")

    reply = await stage.ask(provider)

    assert reply.parts == (TextPart(text="Hi"),)
    assert stage.slept == [0.5]
    assert stage.names() == [
        "llm_request_sent", "llm_retry_scheduled", "llm_request_sent", "llm_response_received",
    ]  # fmt: skip


@pytest.mark.parametrize(
    "failure",
    [BadRequest("x"), ContextTooLong("x"), AuthFailed("x"), NotFound("x"), QuotaExhausted("x")],
    ids=lambda failure: failure.reason,
)
async def test_permanent_failures_are_not_retried(failure: CallFailed) -> None:
    stage, provider = Stage(), ScriptedProvider(fails(failure), says("never"))

    with pytest.raises(type(failure)):
        await stage.ask(provider)

    assert (stage.slept, provider.left) == ([], 1)
    assert stage.names() == ["llm_request_sent", "llm_request_failed"]


async def test_events_contain_the_known_facts_of_the_request() -> None:
    stage = Stage()
    provider = ScriptedProvider(fails(RateLimited("slow down", retry_after_seconds=3)), says("Hi"), name="anthropic")

    await stage.ask(provider)

    sent, scheduled, again, received = stage.events
    assert isinstance(sent, LlmRequestSent)
    assert isinstance(scheduled, LlmRetryScheduled)
    assert isinstance(again, LlmRequestSent)
    assert isinstance(received, LlmResponseReceived)
    assert (sent.turn, sent.meta.provider, sent.meta.model, sent.meta.attempt) == (4, "anthropic", REQUEST.model, 1)
    assert (scheduled.reason, scheduled.retry_after_seconds) == ("rate_limited", 3)
    assert scheduled.delay_seconds == 3.5  # what was asked for, and half of a second of jitter
    assert (again.turn, again.meta.attempt) == (4, 2)
    assert (received.meta.input_tokens, received.meta.output_tokens, received.stop_reason) == (100, 10, "end")
    assert received.meta.cost_usd == pytest.approx((100 * 1 + 10 * 5) / 1_000_000)


async def test_retries_stop_at_the_configured_number() -> None:
    stage = Stage(policy=RetryPolicy(max_retries=2))
    provider = ScriptedProvider(*[fails(ServerFailed("oops"))] * 3, says("never"))

    with pytest.raises(ServerFailed):
        await stage.ask(provider)

    last = stage.events[-1]
    assert isinstance(last, LlmRequestFailed)
    assert (len(provider.requests), provider.left, len(stage.slept)) == (3, 1, 2)
    assert (last.reason, last.message, last.retryable, last.meta.attempt) == ("server_error", "oops", True, 3)


async def test_retries_can_be_disabled() -> None:
    stage = Stage(policy=RetryPolicy(max_retries=0))

    with pytest.raises(ServerFailed):
        await stage.ask(ScriptedProvider(fails(ServerFailed("oops"))))

    assert stage.slept == []


async def test_retry_delay_beyond_the_limit_is_not_waited_for() -> None:
    stage = Stage()

    with pytest.raises(RateLimited):
        await stage.ask(ScriptedProvider(fails(RateLimited("x", retry_after_seconds=61)), says("never")))

    assert stage.slept == []


async def test_partial_text_of_a_failed_attempt_is_discarded() -> None:
    stage = Stage()

    await stage.ask(ScriptedProvider(fails(ConnectionLost("gone"), shown="Hel"), says("Hello")))

    assert stage.shown == [Delta("text", "Hel"), Delta("restart"), Delta("text", "Hello")]


async def test_fallback_model_answers_if_the_first_fails() -> None:
    stage = Stage(policy=RetryPolicy(max_retries=1))
    first = ScriptedProvider(*[fails(Overloaded("full"))] * 2, name="anthropic")
    second = ScriptedProvider(says("Here"), name="gemini")

    reply = await stage.ask(first, Candidate(second, "gemini-2.5-flash"))

    assert (reply.provider, reply.model) == ("gemini", "gemini-2.5-flash")
    assert second.requests[0].model == "gemini-2.5-flash"
    assert stage.names()[-3:] == ["llm_request_failed", "llm_request_sent", "llm_response_received"]


@pytest.mark.parametrize("failure", [AuthFailed("x"), BadRequest("x")], ids=lambda failure: failure.reason)
async def test_invalid_key_and_invalid_request_do_not_fall_back(failure: CallFailed) -> None:
    second = ScriptedProvider(says("never"))

    with pytest.raises(type(failure)):
        await Stage().ask(ScriptedProvider(fails(failure)), Candidate(second, "m"))

    assert second.requests == []


@pytest.mark.parametrize("failure", [ContextTooLong("x"), QuotaExhausted("x"), NotFound("x")], ids=lambda f: f.reason)
async def test_fallback_model_may_support_a_missing_feature(failure: CallFailed) -> None:
    second = ScriptedProvider(says("Here"))

    reply = await Stage().ask(ScriptedProvider(fails(failure)), Candidate(second, "m"))

    assert reply.parts == (TextPart(text="Here"),)


@pytest.mark.parametrize(
    ("attempt", "draw", "seconds"),
    [(1, 0.0, 0), (1, 0.5, 0.5), (2, 1.0, 2), (3, 1.0, 4), (4, 1.0, 8), (5, 1.0, 8), (5000, 0.25, 2)],
)
async def test_backoff_doubles_with_full_jitter_up_to_its_maximum(attempt: int, draw: float, seconds: float) -> None:
    assert back_off(RetryPolicy(), attempt, lambda: draw) == seconds
