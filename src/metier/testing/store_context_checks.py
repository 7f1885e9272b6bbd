"""Checks of the store contract: conversations and their limits, duplicate messages, single-use tokens."""

import dataclasses
from dataclasses import replace

import anyio
from pydantic import JsonValue

from metier.errors import UsageError
from metier.store.contexts import (
    ENDED,
    MAX_EVENTS_PER_CONTEXT,
    MAX_POCKET_FACTS_PER_BUCKET,
    Claim,
    Completion,
    ContextChange,
    ContextState,
    ContextStore,
    NewEvent,
    NewFact,
    NewSummary,
    Redemption,
)
from metier.store.failures import BucketFull, ClaimLost, DuplicateMessageError, StoreError, VersionConflictError
from metier.testing.store_case import Case, outcomes_of, refused

# PostgreSQL's JSONB rejects NUL and lone surrogates, and 10**30 fits no 64-bit integer.
ODD: tuple[JsonValue, ...] = (
    None,
    True,
    0,
    -1.5,
    10**30,
    "",
    "a\x00b",
    "\ud800",
    "多\n'\"",
    [],
    {},
    {"k": [{"\x00": None}]},
)


def _state(version: int = 0, **fields: object) -> ContextState:
    return replace(ContextState(context_id="c1", version=version), **fields)


async def _put(contexts: ContextStore, state: ContextState) -> ContextState:
    return await contexts.commit(state.context_id, ContextChange(state=state))


async def check_a_state_is_read_as_written(case: Case) -> None:
    assert await case.first.contexts.find_state("c1") is None

    for version, value in enumerate(ODD):
        state = _state(
            version, current_turn=3, task_state="input_required", agent_state_detail="det\x00ail", input_request=value
        )
        stored = await _put(case.first.contexts, state)
        found = await case.second.contexts.find_state("c1")

        assert found == stored
        assert stored == replace(state, version=version + 1, created_at=stored.created_at, updated_at=stored.updated_at)


async def check_a_state_is_replaced_only_at_the_expected_version(case: Case) -> None:
    first = await _put(case.first.contexts, _state())
    await _put(case.second.contexts, replace(first, current_turn=2))

    await refused(VersionConflictError, _put(case.first.contexts, replace(first, current_turn=9)))
    await refused(VersionConflictError, _put(case.first.contexts, _state(current_turn=9)))
    late = ContextChange(state=replace(first, current_turn=9), expected_version=7, facts=(_fact("k"),))
    await refused(VersionConflictError, case.first.contexts.commit("c1", late))

    found = await case.first.contexts.find_state("c1")
    assert found is not None
    assert (found.version, found.current_turn) == (2, 2)
    assert await case.first.contexts.list_facts("c1") == []


async def check_one_of_several_concurrent_state_changes_wins(case: Case) -> None:
    for version in range(10):
        writers = [
            # On both handles, so that the database has to decide: a lock inside one handle would not be enough.
            _put((case.first if number % 2 else case.second).contexts, _state(version, current_turn=number + 1))
            for number in range(8)
        ]
        assert (await outcomes_of(writers)).count(None) == 1


def _event(text: JsonValue, *, turn: int = 1, message_id: str = "") -> NewEvent:
    return NewEvent(event_type="note", payload=text, turn_number=turn, agent_id="a", message_id=message_id)


async def check_events_are_ordered_and_limited(case: Case) -> None:
    for value in ODD:
        await case.first.contexts.commit("c1", ContextChange(events=(_event(value),)))
    assert [event.payload for event in await case.second.contexts.list_events("c1")] == list(ODD)

    numbers = range(MAX_EVENTS_PER_CONTEXT + 20)
    await case.first.contexts.commit("c1", ContextChange(events=tuple(_event(number) for number in numbers)))

    events = await case.second.contexts.list_events("c1", limit=1000)
    assert [event.payload for event in events] == list(numbers)[20:]
    assert [event.number for event in events] == list(range(len(ODD) + 21, len(ODD) + 121))
    assert [event.payload for event in await case.second.contexts.list_events("c1", limit=2)] == [118, 119]
    assert await case.second.contexts.list_events("c1", after=events[-1].number) == []
    assert await case.second.contexts.list_events("other") == []


async def check_an_event_of_a_message_is_stored_once(case: Case) -> None:
    for _ in range(2):
        events = (_event("one", message_id="m1"), _event("two"), _event("three", message_id="m2"))
        await case.first.contexts.commit("c1", ContextChange(events=events))
    await case.first.contexts.commit("c2", ContextChange(events=(_event("one", message_id="m1"),)))

    events = await case.second.contexts.list_events("c1")
    assert [(event.number, event.payload) for event in events] == [(1, "one"), (2, "two"), (3, "three"), (4, "two")]


async def check_a_waiting_context_keeps_the_events_and_facts_of_its_turn(case: Case) -> None:
    contexts = case.first.contexts
    await contexts.commit("c1", ContextChange(events=(_event("old", turn=1), _event("asked", turn=2))))
    full = tuple(_fact(f"k{number:02}") for number in range(MAX_POCKET_FACTS_PER_BUCKET))
    await contexts.commit("c1", ContextChange(state=_state(task_state="input_required", current_turn=2), facts=full))

    # The answer may refer to anything in the turn that asked, so only events of earlier turns are dropped.
    await contexts.commit("c1", ContextChange(events=tuple(_event(number, turn=2) for number in range(100))))
    await refused(BucketFull, contexts.commit("c1", ContextChange(facts=(_fact("more"),), events=(_event("no"),))))
    await contexts.commit("c1", ContextChange(facts=(_fact("k00"),)))

    kept = await contexts.list_events("c1", limit=1000)
    assert [event.payload for event in kept] == ["asked", *range(100)]
    assert len(await contexts.list_facts("c1")) == MAX_POCKET_FACTS_PER_BUCKET


def _fact(key: str, value: JsonValue = 1, *, bucket: str = "b", ttl_seconds: float | None = None) -> NewFact:
    return NewFact(bucket=bucket, key=key, value=value, ttl_seconds=ttl_seconds)


async def check_facts_are_replaced_removed_and_limited(case: Case) -> None:
    contexts = case.first.contexts
    await contexts.commit("c1", ContextChange(facts=tuple(_fact(f"odd{n}", value) for n, value in enumerate(ODD))))
    for number, value in enumerate(ODD):
        found = await case.second.contexts.find_fact("c1", "b", f"odd{number}")
        assert found is not None
        assert found.value == value
    await contexts.commit("c1", ContextChange(facts=(_fact("odd0", "new"),), forgotten=(("b", "odd1"), ("b", "x"))))
    assert (await contexts.list_facts("c1", bucket="b"))[0].value == "new"
    assert await contexts.find_fact("c1", "b", "odd1") is None
    assert await contexts.find_fact("c1", "other", "odd0") is None
    assert await contexts.find_fact("c2", "b", "odd0") is None

    for number in range(MAX_POCKET_FACTS_PER_BUCKET + 5):
        await contexts.commit("c1", ContextChange(facts=(_fact(f"k{number:02}", number, bucket="full"),)))
        # The oldest fact is dropped, and facts of the same time would have no oldest one.
        await case.subject.pass_seconds(0.001)
    await contexts.commit("c1", ContextChange(facts=(_fact("a", bucket="full"),)))

    keys = [fact.key for fact in await case.second.contexts.list_facts("c1", bucket="full")]
    assert keys == ["a", *(f"k{number:02}" for number in range(6, 55))]


async def check_an_expired_fact_is_not_read(case: Case) -> None:
    seconds = case.subject.lease_seconds
    facts = (_fact("short", ttl_seconds=seconds), _fact("long", ttl_seconds=1e6), _fact("ever"))
    await case.first.contexts.commit("c1", ContextChange(facts=facts))
    assert await case.second.contexts.find_fact("c1", "b", "short") is not None

    await case.subject.pass_seconds(seconds * 1.01)

    assert await case.second.contexts.find_fact("c1", "b", "short") is None
    assert [fact.key for fact in await case.second.contexts.list_facts("c1")] == ["ever", "long"]
    await case.first.contexts.commit("c1", ContextChange(facts=(_fact("short", "again"),)))
    assert await case.second.contexts.find_fact("c1", "b", "short") is not None


async def check_a_newer_summary_is_not_replaced_by_an_older_one(case: Case) -> None:
    contexts = case.first.contexts
    await contexts.commit("c1", ContextChange(summary=NewSummary(text="all \x00 of it", upto=9)))
    state = await contexts.commit("c1", ContextChange(summary=NewSummary(text="half", upto=5)))

    # A summary leaves the version alone: it must not conflict with a turn that read the state before.
    assert (state.summary, state.summarized_to, state.version) == ("all \x00 of it", 9, 0)
    state = await _put(contexts, replace(state, summary="the caller's \x00 own"))
    found = await case.second.contexts.find_state("c1")
    assert found is not None
    assert found.summary == "the caller's \x00 own"
    await contexts.commit("c1", ContextChange(summary=NewSummary(text="newer", upto=10)))
    await _put(contexts, state)
    found = await case.second.contexts.find_state("c1")
    assert found is not None
    assert found.summary == "newer"


async def check_a_message_is_processed_once_and_its_result_is_stored(case: Case) -> None:
    claim = await _claim(case.first.contexts)
    under_way = await refused(DuplicateMessageError, _claim(case.second.contexts, "bob"))
    change = ContextChange(
        state=_state(current_turn=2), events=(_event("done"),), completion=Completion(claim=claim, result={"n": 1})
    )
    await case.first.contexts.commit("c1", change)
    done = await refused(DuplicateMessageError, _claim(case.second.contexts, "bob"))

    assert (under_way.is_done, done.is_done, done.result) == (False, True, {"n": 1})
    await refused(ClaimLost, case.first.contexts.commit("c1", replace(change, state=_state(1))))
    found = await case.second.contexts.find_message("c1", "m1")
    assert found is not None
    assert (found.is_done, found.result, found.owner) == (True, {"n": 1}, "")
    assert await case.second.contexts.find_message("c1", "m2") is None
    assert await _claim(case.second.contexts, context_id="c2")


async def _claim(
    contexts: ContextStore, owner: str = "ann", *, context_id: str = "c1", seconds: float = 1000.0
) -> Claim:
    return await contexts.claim_message(context_id, "m1", owner=owner, seconds=seconds)


async def check_a_message_of_a_dead_worker_is_taken_over(case: Case) -> None:
    seconds = case.subject.lease_seconds
    old = await _claim(case.first.contexts, seconds=seconds)
    await case.first.contexts.renew_claim(old, seconds=seconds)
    await case.subject.pass_seconds(seconds * 1.01)
    new = await _claim(case.second.contexts, "bob")

    # The old worker may be slow and not dead. Its token is lower, so all of its late change is rejected.
    late = ContextChange(state=_state(current_turn=9), completion=Completion(claim=old, result="late"))
    await refused(ClaimLost, case.first.contexts.commit("c1", late))
    await refused(ClaimLost, case.first.contexts.renew_claim(old, seconds=seconds))
    await case.first.contexts.release_claim(old)
    await case.second.contexts.commit("c1", ContextChange(completion=Completion(claim=new, result="new")))

    found = await case.first.contexts.find_message("c1", "m1")
    state = await case.first.contexts.find_state("c1")
    assert found is not None
    assert state is not None
    assert (found.result, state.version) == ("new", 0)


async def check_a_claim_that_was_released_or_has_expired(case: Case) -> None:
    seconds = case.subject.lease_seconds
    claim = await _claim(case.first.contexts, seconds=seconds)
    await case.first.contexts.release_claim(claim)
    again = await _claim(case.second.contexts, "bob", seconds=seconds)
    assert again.token > claim.token
    await case.subject.pass_seconds(seconds * 1.01)

    # Expired but not taken over: no other worker has the message, so the finished work counts.
    await case.second.contexts.commit("c1", ContextChange(completion=Completion(claim=again, result=1)))

    assert (await refused(DuplicateMessageError, _claim(case.first.contexts))).result == 1


async def check_a_message_answered_under_the_lease_of_a_run_needs_no_claim(case: Case) -> None:
    await _claim(case.first.contexts)
    answer = ContextChange(state=_state(), completion=Completion(claim=None, message_id="m1", result="new"))
    await case.second.contexts.commit("c1", answer)

    late = replace(answer, completion=Completion(claim=None, message_id="m1", result="late"))
    await refused(VersionConflictError, case.first.contexts.commit("c1", late))

    found = await case.first.contexts.find_message("c1", "m1")
    assert found is not None
    assert (found.is_done, found.result, found.owner) == (True, "new", "")


async def check_one_of_several_concurrent_claims_of_a_message_wins(case: Case) -> None:
    done: list[str] = []

    async def bring(number: int, message_id: str) -> None:
        contexts = (case.first if number % 2 else case.second).contexts
        try:
            claim = await contexts.claim_message("c1", message_id, owner=f"o{number}", seconds=1000)
        except DuplicateMessageError:
            return
        done.append(message_id)
        await contexts.commit("c1", ContextChange(completion=Completion(claim=claim, result=number)))

    async with anyio.create_task_group() as tasks:
        for number in range(80):
            tasks.start_soon(bring, number, f"m{number % 10}")

    assert sorted(done) == sorted(f"m{number}" for number in range(10))


async def check_a_token_is_redeemed_once(case: Case) -> None:
    state = await _put(case.first.contexts, _state(task_state="input_required", current_turn=2))
    good = Redemption(version=state.version, turn=2, digest="")

    for wrong in (
        dataclasses.replace(good, version=0),
        dataclasses.replace(good, version=2),
        dataclasses.replace(good, turn=1),
    ):
        assert await case.first.contexts.redeem("c1", wrong) is None
    assert await case.first.contexts.redeem("c2", good) is None
    redeemed = await case.first.contexts.redeem("c1", good)
    assert redeemed is not None
    assert (redeemed.version, redeemed.task_state) == (2, "input_required")
    assert await case.second.contexts.redeem("c1", good) is None
    await refused(VersionConflictError, _put(case.second.contexts, state))


async def check_a_token_of_an_ended_context_is_rejected(case: Case) -> None:
    for ending in ENDED:
        name = f"over-{ending}"
        state = await _put(case.first.contexts, _state(task_state=ending, context_id=name))
        redemption = Redemption(version=state.version, turn=state.current_turn, digest="")
        assert await case.second.contexts.redeem(name, redemption) is None


async def check_a_message_can_redeem_its_token_again(case: Case) -> None:
    state = await _put(case.first.contexts, _state())
    mine = Redemption(version=state.version, turn=1, digest="a" * 64)
    first = await case.first.contexts.redeem("c1", mine)
    again = await case.second.contexts.redeem("c1", mine)
    assert first is not None
    # The same message may arrive again after a crash, and must be able to finish what it started.
    assert again == first
    assert await case.second.contexts.redeem("c1", dataclasses.replace(mine, digest="b" * 64)) is None

    started = await _put(case.first.contexts, replace(first, task_state="in_progress"))
    assert await case.second.contexts.redeem("c1", mine) == started
    claim = await case.first.contexts.claim_message("c1", "m1", owner="a", seconds=60)
    done = ContextChange(state=started, completion=Completion(claim=claim, result=1))
    await case.first.contexts.commit("c1", done)

    assert await case.second.contexts.redeem("c1", mine) is None


async def check_one_of_several_concurrent_redemptions_wins(case: Case) -> None:
    for version in range(10):
        state = await _put(case.first.contexts, _state(version * 2))
        won: list[ContextState] = []

        async def redeem(number: int, state: ContextState, won: list[ContextState]) -> None:
            contexts = (case.first if number % 2 else case.second).contexts
            got = await contexts.redeem("c1", Redemption(version=state.version, turn=1, digest=""))
            if got is not None:
                won.append(got)

        async with anyio.create_task_group() as tasks:
            for number in range(8):
                tasks.start_soon(redeem, number, state, won)
        assert len(won) == 1


async def check_a_context_is_listed_and_deleted_completely(case: Case) -> None:
    await case.first.contexts.commit(
        "c1", ContextChange(state=_state(task_state="paused"), events=(_event("x"),), facts=(_fact("k"),))
    )
    claim = await _claim(case.first.contexts)
    await case.subject.pass_seconds(0.001)
    await case.first.contexts.commit("c2", ContextChange(facts=(_fact("k"),)))

    assert [state.context_id for state in await case.second.contexts.list_contexts()] == ["c2", "c1"]
    assert [state.context_id for state in await case.second.contexts.list_contexts(task_state="paused")] == ["c1"]
    assert await case.second.contexts.delete_context("c1")
    assert not await case.second.contexts.delete_context("c1")

    assert await case.first.contexts.find_state("c1") is None
    assert await case.first.contexts.list_events("c1") == []
    assert await case.first.contexts.list_facts("c1") == []
    assert await case.first.contexts.find_message("c1", "m1") is None
    # A worker of the deleted context may still hold a claim, so tokens do not start from the beginning.
    assert (await _claim(case.first.contexts)).token > claim.token
    assert len(await case.first.contexts.list_facts("c2")) == 1


async def check_invalid_names_and_values_are_rejected(case: Case) -> None:
    contexts = case.first.contexts
    changes = (
        ContextChange(events=(replace(_event(1), event_type=""),)),
        ContextChange(events=(replace(_event(1), event_type="x" * 101),)),
        ContextChange(facts=(_fact("x" * 256),)),
        ContextChange(facts=(_fact("k", bucket="x" * 101),)),
        ContextChange(facts=(_fact("k", ttl_seconds=0),)),
        ContextChange(facts=(_fact("k", float("nan")),)),
        ContextChange(state=replace(_state(), context_id="other")),
        ContextChange(summary=NewSummary(text="x" * 10_001, upto=1)),
    )
    for change in changes:
        await refused(UsageError, contexts.commit("c1", change))
    await refused(UsageError, contexts.commit("", ContextChange()))
    await refused(UsageError, contexts.commit("x" * 256, ContextChange()))
    await refused(UsageError, contexts.claim_message("c1", "", owner="ann", seconds=1))

    assert await contexts.list_contexts() == []


async def check_a_failed_change_writes_nothing(case: Case) -> None:
    stale = ContextChange(state=_state(5), events=(_event("x"),), facts=(_fact("k"),))
    await refused(StoreError, case.first.contexts.commit("c1", stale))

    assert await case.second.contexts.list_events("c1") == []
    assert await case.second.contexts.list_facts("c1") == []
    assert await case.second.contexts.find_state("c1") is None
