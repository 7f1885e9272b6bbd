"""A chat is one context with many runs; its prompt stays within limits."""

import dataclasses
import os
from datetime import timedelta
from itertools import pairwise
from pathlib import Path

import anyio
import pytest
from chat_workspace import LIMIT, CountingModel, build_host, chatting, is_summary, last_words, text_of
from msgspec.structs import replace

from metier.engine.journal import read_entries
from metier.engine.stopper import Stopper
from metier.errors import UsageError
from metier.messages import Message
from metier.providers.base import ModelRequest
from metier.runtime.chat.chats import Chat, ChatRequest, list_chats, open_chat
from metier.runtime.chat.conversations import SUMMARIZER, read_conversation
from metier.runtime.driver import DriveOptions
from metier.runtime.history.prompts import show_turn
from metier.runtime.host import Host
from metier.runtime.records.pins import find_instructions
from metier.runtime.requests import RunRequest
from metier.runtime.runs import open_runtime
from metier.store.failures import LeaseHeld, RunUnknown, VersionConflictError

pytestmark = [pytest.mark.anyio, pytest.mark.slow]

SUMMARY = "They go through a list of numbers. Number after number was confirmed; nothing is open.\nFacts:\n- pet: Miro"


def echo(request: ModelRequest) -> str:
    return SUMMARY if is_summary(request) else f"Noted, {last_words(request)[:60]}. " + "That is fine with me. " * 4


async def talk(chat: Chat, first: int, last: int) -> list[float]:
    """Send scripted messages and return the cost of each turn."""
    costs: list[float] = []
    for number in range(first, last + 1):
        state = await chat.send(f"Turn {number}: what about item {number * 37 % 101}? " + "Some more words on it. " * 6)
        assert state.status == "completed"
        costs.append(state.cost_usd)
    return costs


TURNS = 300 if os.environ.get("METIER_STATE_ALL") else 120
"""Either has several summaries, and stretches of forty turns that do not overlap."""


@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    ("turns", "summarizes"), [(TURNS, True), (100, False)], ids=["by a model", "from its own words"]
)
async def test_a_long_chat_keeps_its_facts_within_a_constant_budget_per_turn(
    *, tmp_path: Path, turns: int, summarizes: bool
) -> None:
    model = CountingModel(echo if summarizes else lambda request: "" if is_summary(request) else echo(request))
    async with chatting(build_host(tmp_path, model)) as chat:
        await chat.send("Hello, my name is Ada Okonkwo. Our release branch is called harvest-9.")
        await chat.remember("vault: the key is under drawer 4711")
        costs = await talk(chat, 2, turns)
        runs = await chat.runtime.store.list_runs(context_id=chat.context_id, limit=1000)

        answered = [request for request in model.requests if not is_summary(request)]
        tokens = [size for size, request in zip(model.tokens, model.requests, strict=True) if not is_summary(request)]
        assert len(answered) == turns
        assert max(model.tokens) <= LIMIT
        for fact in ("Ada Okonkwo", "harvest-9", "drawer 4711"):
            assert fact in text_of(answered[-1])
            assert all(fact in text_of(request) for request in answered[1:] if fact != "drawer 4711")
        assert max(tokens[-40:]) <= 1.05 * max(tokens[20:60])
        assert sum(costs[-40:]) <= 1.05 * sum(costs[20:60])
        sums = [row for row in runs if row.agent == SUMMARIZER]
        assert turns // 30 < len(sums) < turns // 5
        assert all(row.cost_usd > 0 for row in sums)
        assert sum(row.cost_usd for row in sums) < 0.6 * sum(costs)
        assert ("pet: Miro" in text_of(answered[-1])) is summarizes


async def test_an_oversized_summary_is_truncated_and_does_not_trigger_the_next(tmp_path: Path) -> None:
    model = CountingModel(lambda request: "blah blah, " * 3000 if is_summary(request) else echo(request))
    async with chatting(build_host(tmp_path, model)) as chat:
        await talk(chat, 1, 35)

    sums = [number for number, request in enumerate(model.requests) if is_summary(request)]
    assert sums
    assert min(later - earlier for earlier, later in pairwise(sums)) > 3
    assert max(model.tokens) <= LIMIT


async def test_messages_larger_than_the_window_are_shortened_in_later_turns(tmp_path: Path) -> None:
    model = CountingModel(lambda request: SUMMARY if is_summary(request) else "long answer " * 2000)
    async with chatting(build_host(tmp_path, model)) as chat:
        await talk(chat, 1, 12)

    assert max(model.tokens) <= LIMIT
    assert "characters omitted" in text_of(model.requests[-1])


async def test_the_context_of_a_turn_is_recorded_byte_for_byte(tmp_path: Path) -> None:
    model = CountingModel(echo)
    async with chatting(build_host(tmp_path, model)) as chat:
        await chat.send("My name is Ada.")
        state = await chat.send("What is my name?")

        entries = await read_entries(chat.runtime.store, state.run_id)
        assert state.started is not None
        assert entries[0] == state.started
        assert state.started.context_id == chat.context_id != state.run_id
        told = await find_instructions(state.started.pins, chat.runtime.store)
        assert told is not None
        assert "My name is Ada" in told.facts
        assert [message.role for message in told.conversation] == ["user", "assistant"]
        assert (await show_turn(chat.runtime, state.run_id)).is_exact


async def test_a_conversation_continues_in_another_process_with_agent_model_and_history(tmp_path: Path) -> None:
    agents = tmp_path / ".agent/agents/keeper"
    agents.mkdir(parents=True)
    (agents / "AGENT.md").write_text("---\nname: Keeper\nmodel: m\nallowed_models: [other]\n---\nBe brief.\n")
    model = CountingModel(echo)
    host = build_host(tmp_path, model)
    async with chatting(host, ChatRequest(agent="keeper")) as chat:
        await chat.send("The first thing")
        await chat.use_model("other")
        with pytest.raises(UsageError, match="not one that agent 'keeper' may use"):
            await chat.use_model("third")
        assert chat.list_models() == ("other", "m")
        context_id = chat.context_id

    async with chatting(host, ChatRequest(is_continued=True)) as again:
        assert (again.context_id, again.agent_id, again.model) == (context_id, "keeper", "other")
        await again.send("The second thing")

    assert model.requests[-1].model == "other"
    assert "The first thing" in text_of(model.requests[-1])


async def test_the_summary_model_must_be_allowed_by_the_agent(tmp_path: Path) -> None:
    agents = tmp_path / ".agent/agents/keeper"
    agents.mkdir(parents=True)
    (agents / "AGENT.md").write_text("---\nname: Keeper\nmodel: m\nallowed_models: [cheap]\n---\nBe brief.\n")
    model = CountingModel(echo)
    async with chatting(build_host(tmp_path, model, chat={"summary_model": "cheap"}), ChatRequest(agent="keeper")) as c:
        await talk(c, 1, 25)
    assert {request.model for request in model.requests if is_summary(request)} == {"cheap"}
    assert {request.model for request in model.requests if not is_summary(request)} == {"m"}

    host = build_host(tmp_path, model, chat={"summary_model": "forbidden"})
    async with chatting(host, ChatRequest(is_continued=True)) as c:
        with pytest.raises(UsageError, match="'forbidden' is not one that agent 'keeper' may use"):
            await talk(c, 26, 60)


async def test_undo_reverts_the_last_turn_and_its_facts(tmp_path: Path) -> None:
    model = CountingModel(echo)
    async with chatting(build_host(tmp_path, model)) as chat:
        await chat.send("Our port is 8080.")
        wrong = await chat.send("Oops. My password hint is tulip.")

        undone = await chat.undo()
        await chat.send("Where were we?")

        assert undone.run_id == wrong.run_id
        told = text_of(model.requests[-1])
        assert "8080" in told
        assert "tulip" not in told
        assert (await chat.runtime.read(wrong.run_id)).status == "completed"
        assert [turn.said for _, turn in await chat.list_turns()] == ["Our port is 8080.", "Where were we?"]
        await chat.undo()
        await chat.undo()
        with pytest.raises(UsageError, match="no turn to take back"):
            await chat.undo()


async def test_undone_turns_do_not_displace_others_from_the_log(tmp_path: Path) -> None:
    model = CountingModel(echo)
    host = build_host(tmp_path, model, model={"provider": "openai", "name": "m"})
    async with chatting(host) as chat:
        await chat.send("The code word is wombat, keep it.")
        for number in range(60):
            await chat.send(f"Try {number}")
            await chat.undo()
        await chat.send("What was the code word?")

    summed_up = [request for request in model.requests if is_summary(request)]
    assert any("wombat" in text_of(request) for request in summed_up)
    assert "Try 0" not in text_of(summed_up[0])


async def test_one_of_two_concurrent_messages_may_be_rejected_before_a_model_call(tmp_path: Path) -> None:
    model = CountingModel(echo)
    host = build_host(tmp_path, model)
    async with open_runtime(host) as runtime:
        await (await open_chat(runtime, ChatRequest(context_id="shared"))).send("Hello")
        chats = [await open_chat(runtime, ChatRequest(context_id="shared")) for _ in range(2)]
        failures: list[LeaseHeld | VersionConflictError] = []

        async def speak(chat: Chat) -> None:
            try:
                await chat.send("Me first")
            except (LeaseHeld, VersionConflictError) as error:  # the other turn runs already, or was stored first
                failures.append(error)

        async with anyio.create_task_group() as group:
            for chat in chats:
                group.start_soon(speak, chat)

        said = [request for request in model.requests if last_words(request) == "Me first"]
        assert len(said) + len(failures) == 2
        assert len((await read_conversation(runtime.store, "shared")).turns) == 1 + len(said)


async def test_a_stopped_turn_continues_on_request_and_is_ended_by_the_next_message(tmp_path: Path) -> None:
    model = CountingModel(echo)
    async with chatting(build_host(tmp_path, model)) as chat:
        stopper = Stopper(0)
        stopper.request("the test")
        stopped = await chat.send("Do it", DriveOptions(stopper=stopper))
        assert stopped.status == "paused"
        turn = await chat.find_open_turn()
        assert turn is not None
        assert turn.wait_kind == "stopped"

        done = await chat.continue_turn()
        assert done is not None
        assert (done.run_id, done.status) == (stopped.run_id, "completed")
        assert await chat.find_open_turn() is None

        stopper = Stopper(0)
        stopper.request("the test")
        second = await chat.send("Do another", DriveOptions(stopper=stopper))
        await chat.send("Never mind")

        assert (await chat.runtime.read(second.run_id)).status == "canceled"
        assert "[Stopped before an answer]" in text_of_all(model.requests[-1].messages)


async def test_a_rejected_message_leaves_the_turn_to_its_driver(tmp_path: Path) -> None:
    model = CountingModel(echo)
    async with chatting(build_host(tmp_path, model)) as chat:
        stopper = Stopper(0)
        stopper.request("the test")
        stopped = await chat.send("Do it", DriveOptions(stopper=stopper))
        store = chat.runtime.store
        lease = await store.take_lease(stopped.run_id, owner="somebody else", seconds=600)

        with pytest.raises(LeaseHeld, match="driven by 'somebody else'"):
            await chat.send("Never mind")

        await store.release_lease(lease)
        done = await chat.continue_turn()
        assert done is not None
        assert (done.run_id, done.status) == (stopped.run_id, "completed")


def text_of_all(messages: tuple[Message, ...]) -> str:
    return str(messages)


async def test_a_finished_turn_missing_from_the_log_is_added_from_its_journal(tmp_path: Path) -> None:
    model = CountingModel(echo)
    host = build_host(tmp_path, model)
    async with open_runtime(host) as runtime:
        plain = await runtime.start(RunRequest(task="Sort the invoices of May"))
        chat = await open_chat(runtime, ChatRequest(context_id=plain.run_id))
        await chat.send("What did you do?")

    assert "Sort the invoices of May" in text_of(model.requests[-1])


async def test_an_old_turn_without_a_journal_is_rejected_and_the_chat_continues(
    tmp_path: Path,
) -> None:
    async with chatting(build_host(tmp_path, CountingModel(echo)), ChatRequest(context_id="c")) as chat:
        done = await chat.send("first")
        row = await chat.runtime.store.find_run(done.run_id)
        assert row is not None
        later = row.created_at + timedelta(seconds=1)
        await chat.runtime.store.create_run(
            dataclasses.replace(row, run_id="r2", task="second", status="pending", created_at=later, driver="")
        )

        with pytest.raises(RunUnknown, match="was ended before it began"):
            await chat.continue_turn()
        state = await chat.send("second")

        assert state.status == "completed"
        assert len((await read_conversation(chat.runtime.store, "c")).turns) == 2


async def test_facts_can_be_stored_named_replaced_and_deleted(tmp_path: Path) -> None:
    async with chatting(build_host(tmp_path, CountingModel(echo))) as chat:
        await chat.remember("Colour:  blue ")
        await chat.remember("colour: green")
        await chat.remember("our parser is hand written")
        await chat.send("My editor is vi. Is my colour red?")

        assert [(fact.key, fact.text, fact.is_own) for fact in await chat.list_facts()] == [
            ("colour", "green", True),
            ("our parser", "our parser is hand written", True),
            ("my editor", "My editor is vi.", False),
        ]
        await chat.forget("COLOUR")
        assert [fact.key for fact in await chat.list_facts()] == ["our parser", "my editor"]
        with pytest.raises(UsageError, match="No fact is called 'x'"):
            await chat.forget("x")
        with pytest.raises(UsageError, match="too long"):
            await chat.remember("y" * 400)


async def test_secrets_in_messages_are_masked_in_later_turns(tmp_path: Path) -> None:
    secret = "-".join(["sk", "ant", "api03"]) + "-" + "abCD1234" * 6
    model = CountingModel(echo)
    async with chatting(build_host(tmp_path, model)) as chat:
        await chat.send(f"My key is {secret}")
        await chat.send("Thanks")

    assert secret not in text_of(model.requests[-1])


async def test_conversations_on_postgresql_behave_the_same(tmp_path: Path, postgres_url: str) -> None:
    model = CountingModel(echo)
    host: Host = build_host(tmp_path, model, store={"backend": "postgres"})
    host = replace(host, environ={"DATABASE_URL": postgres_url})
    async with chatting(host, ChatRequest(context_id="pg")) as chat:
        await chat.send("My name is Ada.")
        await talk(chat, 2, 25)
        await chat.undo()

    async with chatting(host, ChatRequest(is_continued=True)) as chat:
        await chat.send("Still there?")
        assert [state.context_id for state in await list_chats(chat.runtime)] == ["pg"]
    assert "My name is Ada" in text_of(model.requests[-1])
    assert any(is_summary(request) for request in model.requests)
