"""Checks of the store contract: runs that workers claim, outgoing messages, schedules, and usage."""

from dataclasses import replace
from datetime import timedelta

import anyio
from msgspec import structs

from metier.decisions import TaskState
from metier.store.base import Lease
from metier.store.failures import LeaseHeld, LeaseLost, RunUnknown
from metier.store.outbox import OutboxRow, Receiver
from metier.store.schedules import MAX_FIRINGS, Firing, ScheduleMark, ScheduleRow
from metier.store.usage import Amounts, RunCount, Span, UsageRow, build_span
from metier.testing.store_case import NOON, Case, build_entries, build_run, refused


async def _queue(case: Case, run_id: str, *, queue: str = "q", status: TaskState = "pending") -> None:
    await case.first.create_run(replace(build_run(run_id), queue=queue, status=status))


async def _claim(case: Case, owner: str = "w", *, queue: str = "q") -> str:
    lease = await case.second.claim_run(queue=queue, owner=owner, seconds=case.subject.lease_seconds)
    return lease.run_id if lease else ""


async def check_runs_of_a_queue_are_claimed_oldest_first(case: Case) -> None:
    for run_id in ("r2", "r1", "r3"):
        await _queue(case, run_id)
    await _queue(case, "other", queue="elsewhere")
    # A run without a queue is driven by the process that started it.
    await _queue(case, "mine", queue="")
    stale = await case.first.list_stale(queue="q")
    assert [(row.run_id, row.queue) for row in stale] == [("r2", "q"), ("r1", "q"), ("r3", "q")]
    assert [row.run_id for row in await case.first.list_stale(queue="q", limit=1)] == ["r2"]

    assert [await _claim(case) for _ in range(4)] == ["r2", "r1", "r3", ""]

    assert await case.first.list_stale(queue="q") == []
    assert await case.first.list_stale(queue="") == []
    await refused(LeaseHeld, case.first.take_lease("r1", owner="me", seconds=1))


async def check_only_runs_that_can_continue_are_claimed(case: Case) -> None:
    for status in ("completed", "failed", "paused", "input_required", "delegating", "canceled"):
        await _queue(case, f"r-{status}", status=status)
    assert await _claim(case) == ""
    await _queue(case, "r1", status="in_progress")

    lease = await case.second.claim_run(queue="q", owner="w", seconds=1000)
    assert lease is not None
    await case.second.update_run(lease, {"status": "paused"})
    await case.second.release_lease(lease)

    assert await _claim(case) == ""


async def check_a_run_of_a_dead_worker_is_claimed_by_another(case: Case) -> None:
    await _queue(case, "r1")
    old = await case.first.claim_run(queue="q", owner="old", seconds=case.subject.lease_seconds)
    assert old is not None
    await case.first.append(old, 1, build_entries(1))
    assert await _claim(case) == ""

    await case.let_lease_end()
    assert [row.run_id for row in await case.first.list_stale(queue="q")] == ["r1"]
    new = await case.second.claim_run(queue="q", owner="new", seconds=1000)

    assert new is not None
    assert new.token > old.token
    assert (old.left_by, new.left_by) == ("", "old")
    # The worker may only have been suspended, and continues where it was without knowing.
    await refused(LeaseLost, case.first.append(old, 2, build_entries(2)))
    await case.second.append(new, 2, build_entries(2))


async def check_concurrent_claims_get_different_runs(case: Case) -> None:
    for number in range(20):
        await _queue(case, f"r{number:02}")
    claimed: list[Lease] = []

    async def work(number: int) -> None:
        store = case.first if number % 2 else case.second
        while (lease := await store.claim_run(queue="q", owner=f"w{number}", seconds=1000)) is not None:
            claimed.append(lease)

    async with anyio.create_task_group() as tasks:
        for number in range(6):
            tasks.start_soon(work, number)

    assert sorted(lease.run_id for lease in claimed) == [f"r{number:02}" for number in range(20)]
    assert len({lease.token for lease in claimed}) == 20


async def check_waiting_for_entries_ends_when_they_are_written(case: Case) -> None:
    lease = await case.start()
    heard: list[bool] = []

    async def listen() -> None:
        heard.append(await case.second.wait_for_entries("r1", after=1, seconds=60))

    await case.first.append(lease, 1, build_entries(1))
    with anyio.fail_after(60):
        assert await case.second.wait_for_entries("r1", after=0, seconds=60)
        assert not await case.second.wait_for_entries("r1", after=1, seconds=0.05)
        async with anyio.create_task_group() as tasks:
            for _ in range(3):
                tasks.start_soon(listen)
            # Otherwise the entry could be there before the first task waits for it.
            await anyio.wait_all_tasks_blocked()
            await case.first.append(lease, 2, build_entries(2), durable=False)

    assert heard == [True] * 3


async def check_the_first_request_to_end_a_run_is_stored(case: Case) -> None:
    await refused(RunUnknown, case.second.ask_to_end("r1", "soon"))
    lease = await case.start()
    row = await case.first.find_run("r1")
    assert row is not None
    assert row.ending == ""

    await case.second.ask_to_end("r1", 'at once, "please" 多 \x00')
    await case.second.ask_to_end("r1", "never mind")

    await case.first.append(lease, 1, build_entries(1))  # the driver still holds the lease
    await case.first.update_run(lease, {"status": "paused"})
    for store in (case.first, case.second):
        assert [row.ending for row in await store.list_runs()] == ['at once, "please" 多 \x00']


_MESSAGE = OutboxRow(
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


async def check_an_outgoing_message_is_stored_once(case: Case) -> None:
    assert await case.first.outbox.put([_MESSAGE, replace(_MESSAGE, key="k2")]) == 2
    assert await case.second.outbox.put([replace(_MESSAGE, payload="other")]) == 0
    assert [row.payload for row in await case.second.outbox.list("agent") if row.key == "k1"] == [_MESSAGE.payload]
    assert await case.first.outbox.list("another queue") == []


async def check_an_outgoing_message_is_claimed_by_one_process_until_the_claim_expires(case: Case) -> None:
    await case.first.outbox.put([_MESSAGE])
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
    # The first holder took too long, so its result is ignored.
    assert not await case.first.outbox.settle(replace(again, attempts=1, state="sent"))
    assert await case.first.outbox.settle(replace(again, state="sent"))
    assert not await case.second.outbox.settle(replace(again, state="failed"))
    assert await case.second.outbox.list("agent", only_open=True) == []
    (kept,) = await case.second.outbox.list("agent")
    assert kept.state == "sent"


async def check_a_failed_outgoing_message_waits_for_its_next_attempt(case: Case) -> None:
    await case.first.outbox.put([_MESSAGE])
    row = await case.first.outbox.claim("agent", now=NOON, until=_SOON)
    assert row is not None
    later = NOON + timedelta(minutes=5)
    assert await case.first.outbox.settle(replace(row, due_at=later, reason="no answer"))

    assert await case.second.outbox.claim("agent", now=later - timedelta(seconds=1), until=later) is None
    (found,) = await case.second.outbox.list("agent", only_open=True)
    assert (found.reason, found.due_at) == ("no answer", later)
    assert await case.second.outbox.claim("agent", now=later, until=later + timedelta(minutes=1)) is not None


async def check_receivers_are_deleted_with_their_run(case: Case) -> None:
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

    # Receivers contain credentials, so none may stay behind when their runs are deleted.
    await case.first.delete_run("r1")
    await case.first.delete_runs(["r2"])
    assert [*await outbox.list_receivers("r1"), *await outbox.list_receivers("r2")] == []


_SCHEDULE = ScheduleRow(queue="agent", name="nightly", definition='{"name": "nightly"}', created_at=NOON)
_MARK = ScheduleMark(queue="agent", name="nightly", timing="0 6 * * * UTC", since=NOON, decided_to=NOON)


def _build_firing(minutes: int, **changes: bool) -> Firing:
    due_at = NOON + timedelta(minutes=minutes)
    firing = Firing(
        queue="agent", name="nightly", due_at=due_at, outcome="due", run_id=f"r{minutes}", decided_at=due_at
    )
    return structs.replace(firing, **changes)


async def check_schedules_are_added_replaced_and_removed(case: Case) -> None:
    assert await case.first.schedules.put_schedule(_SCHEDULE)
    assert not await case.second.schedules.put_schedule(structs.replace(_SCHEDULE, definition="other"))
    assert await case.second.schedules.list_schedules("agent") == [_SCHEDULE]
    assert await case.first.schedules.list_schedules("another queue") == []

    changed = structs.replace(_SCHEDULE, definition='{"name": "nightly", "a": "\\u0000"}')
    assert await case.second.schedules.put_schedule(changed, replace=True)
    assert await case.first.schedules.list_schedules("agent") == [changed]

    assert await case.first.schedules.delete_schedule("agent", "nightly")
    assert not await case.first.schedules.delete_schedule("agent", "nightly")
    assert await case.second.schedules.list_schedules("agent") == []


async def check_a_schedule_of_a_file_can_be_paused_and_later_added(case: Case) -> None:
    mark = await case.first.schedules.open_mark(_MARK)
    later = NOON + timedelta(hours=1)
    await case.first.schedules.pause_schedule(structs.replace(_SCHEDULE, definition="", is_paused=True), now=NOON)
    (paused,) = await case.second.schedules.list_schedules("agent")
    assert (paused.definition, paused.is_paused) == ("", True)

    await case.second.schedules.pause_schedule(structs.replace(_SCHEDULE, is_paused=False), now=later)
    (going,) = await case.first.schedules.list_schedules("agent")
    assert (going.definition, going.is_paused) == ("", False)
    assert await case.first.schedules.open_mark(_MARK) == structs.replace(mark, decided_to=later)
    assert await case.first.schedules.put_schedule(_SCHEDULE)


async def check_a_due_time_is_decided_once(case: Case) -> None:
    mark = await case.first.schedules.open_mark(_MARK)
    assert await case.second.schedules.open_mark(structs.replace(_MARK, since=NOON + timedelta(days=1))) == mark
    won: list[bool] = []

    async def decide(number: int) -> None:
        store = (case.first, case.second)[number % 2]
        firing = _build_firing(1, is_open=True)
        # Every process found the same due time. Only the one that advances the mark may start its run.
        decided_to = firing.due_at
        won.append(await store.schedules.decide_due(mark, decided_to=decided_to, firings=[firing]))

    async with anyio.create_task_group() as group:
        for number in range(8):
            group.start_soon(decide, number)

    assert sorted(won) == [False] * 7 + [True]
    assert await case.second.schedules.list_firings("agent") == [_build_firing(1, is_open=True)]
    assert (await case.first.schedules.open_mark(_MARK)).decided_to == NOON + timedelta(minutes=1)


async def check_a_firing_is_settled_once(case: Case) -> None:
    firing = _build_firing(1, is_open=True)
    assert await case.first.schedules.put_firing(firing)
    assert not await case.second.schedules.put_firing(firing)
    started = structs.replace(firing, outcome="started", reason="by hand \x00")

    assert await case.second.schedules.settle_firing(started, was="due")
    assert not await case.first.schedules.settle_firing(
        structs.replace(firing, outcome="skipped", is_open=False), was="due"
    )
    assert await case.first.schedules.list_firings("agent", only_open=True) == [started]

    assert await case.first.schedules.settle_firing(structs.replace(started, is_open=False), was="started")
    assert await case.first.schedules.list_firings("agent", name="nightly", only_open=True) == []
    assert await case.first.schedules.list_firings("agent", name="other") == []


async def check_the_history_of_a_schedule_is_limited_and_keeps_open_firings(case: Case) -> None:
    mark = await case.first.schedules.open_mark(_MARK)
    # The oldest one is open: its run was not started yet, so deleting it would lose the run.
    firings = [_build_firing(1, is_open=True), *(_build_firing(minute) for minute in range(2, MAX_FIRINGS + 50))]
    assert await case.first.schedules.decide_due(mark, decided_to=firings[-1].due_at, firings=firings)

    kept = await case.second.schedules.list_firings("agent", limit=10 * MAX_FIRINGS)

    assert kept[0] == firings[-1]
    assert kept[-1] == firings[0]
    assert len(kept) <= MAX_FIRINGS + 2


_CALL = Amounts(calls=1, input_tokens=100, cached_tokens=40, output_tokens=10, cost_usd=0.5)
_FIRST = UsageRow("2026-11-01T12", "openai/a", "notes", _CALL)
_LATER = UsageRow("2026-11-02T08", "openai/b", "", _CALL.plus(_CALL))


async def check_usage_is_summed_by_each_group(case: Case) -> None:
    await case.first.create_run(replace(build_run("r1"), agent="writer", task="tidy the\nnotes"))
    await case.first.create_run(build_run("r2"))
    await case.first.usage.record("r1", [_FIRST, _LATER])
    await case.first.usage.record("r2", [_FIRST])

    usage = case.second.usage
    models = [(total.name, total.amounts.calls, total.amounts.cost_usd) for total in await usage.sum_by("model")]
    assert models == [("openai/a", 2, 1.0), ("openai/b", 2, 1.0)]
    assert {total.name: total.amounts.calls for total in await usage.sum_by("agent")} == {"writer": 3, "built in": 1}
    assert {total.name: total.amounts.calls for total in await usage.sum_by("skill")} == {"notes": 2, "none": 2}
    assert {total.name for total in await usage.sum_by("task")} == {"tidy the notes", "tidy"}
    days = [(total.name, total.amounts.input_tokens) for total in await usage.sum_by("day")]
    assert days == [("2026-11-01", 200), ("2026-11-02", 200)]
    by_day = await usage.sum_by_day("model", names=["openai/b", "unknown"])
    assert [(day, name, amounts.calls) for day, name, amounts in by_day] == [("2026-11-02", "openai/b", 2)]


async def check_usage_before_a_time_is_excluded(case: Case) -> None:
    await case.first.create_run(build_run("r1"))
    await case.first.usage.record("r1", [_FIRST, _LATER])

    usage = case.second.usage
    later = NOON + timedelta(hours=1)
    for since in (build_span(later, now=later), Span("day", "2026-11-02")):
        assert [total.name for total in await usage.sum_by("model", since)] == ["openai/b"]
        assert await usage.sum_by_day("model", since, names=["openai/a"]) == []
    noon = build_span(NOON, now=NOON)
    assert [total.name for total in await usage.sum_by("model", noon)] == ["openai/b", "openai/a"]
    assert [total.name for total in await usage.sum_by("model", noon, limit=1)] == ["openai/b"]
    assert [total.name for total in await usage.sum_by("day", noon)] == ["2026-11-01", "2026-11-02"]


async def check_recording_usage_again_replaces_it(case: Case) -> None:
    await case.first.create_run(build_run("r1"))
    for _ in range(2):
        await case.first.usage.record("r1", [_FIRST])
    assert [total.amounts for total in await case.second.usage.sum_by("model")] == [_CALL]

    await case.second.usage.record("r1", [_FIRST._replace(amounts=_CALL.plus(_CALL)), _LATER])
    assert [total.amounts.calls for total in await case.first.usage.sum_by("model")] == [2, 2]
    await case.second.usage.record("unknown", [_FIRST])
    assert [total.amounts.calls for total in await case.first.usage.sum_by("model")] == [2, 2]


async def check_usage_recorded_at_once_is_counted_once(case: Case) -> None:
    await case.first.create_run(build_run("r1"))
    # The driver and a process that catches up on old runs may record the same run.
    async with anyio.create_task_group() as group:
        for store in (case.first, case.second) * 4:
            group.start_soon(store.usage.record, "r1", [_FIRST, _LATER])
    assert sum(total.amounts.calls for total in await case.first.usage.sum_by("model")) == 3


async def check_totals_remain_after_the_run_is_deleted(case: Case) -> None:
    await case.first.create_run(build_run("r1"))
    await case.first.usage.record("r1", [_FIRST])
    await case.first.delete_run("r1")

    # `agent runs gc` must not change what was spent.
    assert [total.amounts for total in await case.second.usage.sum_by("model")] == [_CALL]
    assert await case.second.usage.count_created() == (0, 0)


async def check_usage_without_a_time_counts_at_the_last_change(case: Case) -> None:
    await case.first.create_run(build_run("r1"))
    await case.first.usage.record("r1", [_FIRST._replace(hour="")])

    (total,) = await case.second.usage.sum_by("day")
    assert total.name == f"{NOON:%Y-%m-%d}"


async def check_ended_and_waiting_runs_without_recorded_usage_are_listed(case: Case) -> None:
    await case.first.create_run(replace(build_run("recorded"), status="completed"))
    await case.first.create_run(replace(build_run("ended"), status="completed"))
    await case.first.create_run(replace(build_run("running"), status="in_progress"))
    await case.first.create_run(replace(build_run("waiting"), status="paused"))
    await case.first.usage.record("recorded", [])

    assert await case.second.usage.list_unrecorded() == ["ended", "waiting"]
    assert await case.second.usage.count_unrecorded() == 2


async def check_runs_are_counted_by_hour_and_status(case: Case) -> None:
    later = NOON + timedelta(hours=2)
    await case.first.create_run(replace(build_run("r1"), status="completed"))
    await case.first.create_run(replace(build_run("r2"), status="completed"))
    await case.first.create_run(replace(build_run("child-r3"), created_at=later))

    await case.first.create_run(replace(build_run("r4"), created_at=later))

    usage = case.second.usage
    assert await usage.count_by_hour(since=NOON) == [
        RunCount("2026-11-01T12", "completed", 2),
        RunCount("2026-11-01T14", "pending", 1),
    ]
    assert await usage.count_by_hour(since=later) == [RunCount("2026-11-01T14", "pending", 1)]
    assert await usage.count_unfinished() == {"pending": 2}
    assert (await usage.count_created(), await usage.count_created(since=later)) == ((4, 2), (2, 0))


async def check_times_of_ended_runs_are_sampled(case: Case) -> None:
    for number in range(9):
        run = replace(build_run(f"r{number}"), status="completed", created_at=NOON + timedelta(minutes=number))
        await case.first.create_run(replace(run, updated_at=run.created_at + timedelta(seconds=number)))
    await case.first.create_run(replace(build_run("child-r9"), status="completed"))
    await case.first.create_run(build_run("r10"))

    count, every = await case.second.usage.sample_times(since=NOON, sample_size=100)
    assert (count, [time.run_id for time in every]) == (9, [f"r{number}" for number in reversed(range(9))])
    assert [time.seconds for time in every][:2] == [8.0, 7.0]
    later = NOON + timedelta(minutes=3)
    count, some = await case.second.usage.sample_times(since=later, sample_size=3)
    assert count == 6
    assert 2 <= len(some) <= 3
    assert {time.created_at >= later for time in some} == {True}
