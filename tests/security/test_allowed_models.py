"""`allowed_models` for every caller: a model outside the list gets no request."""

from pathlib import Path

import pytest
from workspaces import Drill

from metier.errors import MetierError
from metier.events.payload import Payload
from metier.messages import user
from metier.providers.base import ModelRequest
from metier.providers.facts import load_facts
from metier.providers.failures import CallFailed, ModelNotAllowed, ServerFailed
from metier.providers.options import ModelOptions
from metier.providers.retry import Candidate, RetryPolicy, Turn, reply_with_retries
from metier.providers.stand_ins import AllowedProvider
from metier.runtime.model_providers import Models, guard
from metier.testing.scripted import ScriptedProvider, fails, says

pytestmark = pytest.mark.anyio


def ask(model: str) -> ModelRequest:
    return ModelRequest(model=model, messages=(user("hello"),))


def make_turn(told: list[Payload], fallbacks: tuple[Candidate, ...]) -> Turn:
    policy = RetryPolicy(max_retries=1, base_delay_seconds=0, max_delay_seconds=0)
    return Turn(number=1, emit=told.append, policy=policy, facts=load_facts(), fallbacks=fallbacks)


@pytest.mark.parametrize("model", ["big", "BIG", "small2", "other/small", "small ", ""])
async def test_no_request_or_token_count_is_sent_for_a_model_outside_the_list(model: str) -> None:
    inner = ScriptedProvider(says("No."), tokens=5)
    provider = AllowedProvider(inner, ("small",))

    with pytest.raises(ModelNotAllowed, match="is not allowed in this run"):
        await provider.reply(ask(model))
    with pytest.raises(ModelNotAllowed):
        await provider.count_tokens(ask(model))

    assert inner.requests == []


@pytest.mark.parametrize("allowed", [("small",), ("scripted/small",), ("big", "small")])
async def test_an_allowed_model_gets_requests(allowed: tuple[str, ...]) -> None:
    inner = ScriptedProvider(says("Yes."), tokens=5)
    provider = AllowedProvider(inner, allowed)

    await provider.reply(ask("small"))

    assert await provider.count_tokens(ask("small")) == 5
    assert [request.model for request in inner.requests] == ["small"]


async def test_a_fallback_outside_the_list_gets_no_request_after_a_failure() -> None:
    first = ScriptedProvider(fails(ServerFailed("down")), fails(ServerFailed("down")))
    second = ScriptedProvider(says("I am not allowed to say this."))
    models = guard(Models(first, (Candidate(second, "big"),)), ("small",))

    with pytest.raises(ModelNotAllowed):
        await reply_with_retries(models.provider, ask("small"), make_turn([], models.fallbacks))

    assert len(first.requests) == 2
    assert second.requests == []


async def test_a_disallowed_model_does_not_fall_back_to_another_disallowed_one() -> None:
    providers = [ScriptedProvider(says("No.")) for _ in range(3)]
    candidates = tuple(Candidate(provider, "big") for provider in providers[1:])
    models = guard(Models(providers[0], candidates), ("small",))

    with pytest.raises(CallFailed):
        await reply_with_retries(models.provider, ask("huge"), make_turn([], models.fallbacks))

    assert [provider.requests for provider in providers] == [[], [], []]


async def test_a_repair_uses_the_same_allowed_model(tmp_path: Path) -> None:
    drill = Drill(tmp_path, [says('{"selected_skill": 3'), says("Done.")])
    drill.model = ModelOptions(name="small", allowed_models=("small",), structured_output_mode="json")

    await drill.run()

    assert {request.model for request in drill.provider.requests} == {"small"}
    assert len(drill.provider.requests) == 2


async def test_a_run_with_a_model_outside_the_list_sends_no_request(tmp_path: Path) -> None:
    drill = Drill(tmp_path, [says("No.")])
    drill.model = ModelOptions(name="big", allowed_models=("small",))

    try:
        state = await drill.run()
    except MetierError as error:
        assert "big" in error.message  # noqa: PT017 - refused before it begins is as good
    else:
        assert state.failure is not None

    assert drill.provider.requests == []
