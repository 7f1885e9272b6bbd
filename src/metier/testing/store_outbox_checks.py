"""Checks of the store contract: outgoing messages."""

from dataclasses import replace
from datetime import timedelta

import anyio

from metier.store.outbox import OutboxRow, Receiver
from metier.testing.store_case import NOON, Case, Check, build_run

_ROW = OutboxRow(
    key="k1",
    queue="agent",
    channel="webhook",
    run_id="r1",
    seq=3,
    payload='{"a": "\\u0000ü"}',
    created_at=NOON,
    due_at=NOON,
)
_SOON = NOON + timedelta(seconds=30)


async def check_a_message_is_put_once(case: Case) -> None:
    assert await case.first.outbox.put([_ROW, replace(_ROW, key="k2")]) == 2
    assert await case.second.outbox.put([replace(_ROW, payload="other")]) == 0
    assert [row.payload for row in await case.second.outbox.list("agent") if row.key == "k1"] == [_ROW.payload]
    assert await case.first.outbox.list("another queue") == []


async def check_a_message_is_claimed_by_one_process_until_its_time_is_over(case: Case) -> None:
    await case.first.outbox.put([_ROW])
    assert await case.first.outbox.claim("agent", now=NOON - timedelta(seconds=1), until=_SOON) is None

    claimed: list[OutboxRow | None] = []

    async def claim() -> None:
        claimed.append(await case.second.outbox.claim("agent", now=NOON, until=_SOON))

    async with anyio.create_task_group() as group:
        for _ in range(4):
            group.start_soon(claim)

    assert sorted(row.attempts if row else 0 for row in claimed) == [0, 0, 0, 1]
    again = await case.first.outbox.claim("agent", now=_SOON, until=_SOON + timedelta(seconds=30))
    assert again is not None
    assert again.attempts == 2
    # The first holder took too long: what it says does not count any more.
    assert not await case.first.outbox.settle(replace(again, attempts=1, state="sent"))
    assert await case.first.outbox.settle(replace(again, state="sent"))
    assert not await case.second.outbox.settle(replace(again, state="failed"))
    assert await case.second.outbox.list("agent", only_open=True) == []
    (kept,) = await case.second.outbox.list("agent")
    assert kept.state == "sent"


async def check_a_message_that_failed_waits_for_its_next_time(case: Case) -> None:
    await case.first.outbox.put([_ROW])
    row = await case.first.outbox.claim("agent", now=NOON, until=_SOON)
    assert row is not None
    later = NOON + timedelta(minutes=5)
    assert await case.first.outbox.settle(replace(row, due_at=later, reason="no answer"))

    assert await case.second.outbox.claim("agent", now=later - timedelta(seconds=1), until=later) is None
    (found,) = await case.second.outbox.list("agent", only_open=True)
    assert (found.reason, found.due_at) == ("no answer", later)
    assert await case.second.outbox.claim("agent", now=later, until=later + timedelta(minutes=1)) is not None


async def check_receivers_go_with_their_run(case: Case) -> None:
    outbox = case.first.outbox
    await case.first.create_run(build_run("r1"))
    await case.first.create_run(build_run("r2"))
    given = (("r1", "b", "1"), ("r1", "a", "2"), ("r1", "b", "3"), ("r2", "c", "\x00"), ("r2", "d", "5"))
    for run_id, name, data in given:
        await outbox.set_receiver(Receiver(run_id=run_id, name=name, data=data))

    found = await case.second.outbox.list_receivers("r1")
    assert [(each.name, each.data) for each in found] == [("a", "2"), ("b", "3")]
    await case.second.outbox.remove_receiver("r1", "a")
    await case.second.outbox.remove_receiver("r1", "unknown")
    assert [each.name for each in await outbox.list_receivers("r1")] == ["b"]
    assert [each.data for each in await outbox.list_receivers("r2")] == ["\x00", "5"]

    await case.first.delete_run("r1")
    await case.first.delete_runs(["r2"])
    assert [*await outbox.list_receivers("r1"), *await outbox.list_receivers("r2")] == []


OUTBOX_CHECKS: tuple[Check, ...] = (
    check_a_message_is_put_once,
    check_a_message_is_claimed_by_one_process_until_its_time_is_over,
    check_a_message_that_failed_waits_for_its_next_time,
    check_receivers_go_with_their_run,
)
