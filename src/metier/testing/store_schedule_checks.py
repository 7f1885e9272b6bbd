"""Checks of the store contract: schedules."""

from datetime import timedelta

import anyio
from msgspec.structs import replace

from metier.store.schedules import MAX_FIRINGS, Firing, ScheduleMark, ScheduleRow
from metier.testing.store_case import NOON, Case, Check

_ROW = ScheduleRow(queue="agent", name="nightly", definition='{"name": "nightly"}', created_at=NOON)
_MARK = ScheduleMark(queue="agent", name="nightly", timing="0 6 * * * UTC", since=NOON, decided_to=NOON)


def _build_firing(minutes: int, **changes: bool) -> Firing:
    due_at = NOON + timedelta(minutes=minutes)
    firing = Firing(
        queue="agent", name="nightly", due_at=due_at, outcome="due", run_id=f"r{minutes}", decided_at=due_at
    )
    return replace(firing, **changes)


async def check_schedules_are_added_replaced_and_removed(case: Case) -> None:
    assert await case.first.schedules.put_schedule(_ROW)
    assert not await case.second.schedules.put_schedule(replace(_ROW, definition="other"))
    assert await case.second.schedules.list_schedules("agent") == [_ROW]
    assert await case.first.schedules.list_schedules("another queue") == []

    changed = replace(_ROW, definition='{"name": "nightly", "a": "\\u0000"}')
    assert await case.second.schedules.put_schedule(changed, replace=True)
    assert await case.first.schedules.list_schedules("agent") == [changed]

    assert await case.first.schedules.delete_schedule("agent", "nightly")
    assert not await case.first.schedules.delete_schedule("agent", "nightly")
    assert await case.second.schedules.list_schedules("agent") == []


async def check_a_schedule_of_a_file_can_be_paused_and_later_added(case: Case) -> None:
    mark = await case.first.schedules.open_mark(_MARK)
    later = NOON + timedelta(hours=1)
    await case.first.schedules.pause_schedule(replace(_ROW, definition="", is_paused=True), now=NOON)
    (paused,) = await case.second.schedules.list_schedules("agent")
    assert (paused.definition, paused.is_paused) == ("", True)

    await case.second.schedules.pause_schedule(replace(_ROW, is_paused=False), now=later)
    (going,) = await case.first.schedules.list_schedules("agent")
    assert (going.definition, going.is_paused) == ("", False)
    assert await case.first.schedules.open_mark(_MARK) == replace(mark, decided_to=later)
    assert await case.first.schedules.put_schedule(_ROW)


async def check_a_due_time_is_decided_once(case: Case) -> None:
    mark = await case.first.schedules.open_mark(_MARK)
    assert await case.second.schedules.open_mark(replace(_MARK, since=NOON + timedelta(days=1))) == mark
    won: list[bool] = []

    async def decide(number: int) -> None:
        store = (case.first, case.second)[number % 2]
        firing = _build_firing(1, is_open=True)
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
    started = replace(firing, outcome="started", reason="by hand \x00")

    assert await case.second.schedules.settle_firing(started, was="due")
    assert not await case.first.schedules.settle_firing(replace(firing, outcome="skipped", is_open=False), was="due")
    assert await case.first.schedules.list_firings("agent", only_open=True) == [started]

    assert await case.first.schedules.settle_firing(replace(started, is_open=False), was="started")
    assert await case.first.schedules.list_firings("agent", name="nightly", only_open=True) == []
    assert await case.first.schedules.list_firings("agent", name="other") == []


async def check_the_history_of_a_schedule_is_bounded_and_what_is_open_stays(case: Case) -> None:
    mark = await case.first.schedules.open_mark(_MARK)
    firings = [_build_firing(1, is_open=True), *(_build_firing(minute) for minute in range(2, MAX_FIRINGS + 50))]
    assert await case.first.schedules.decide_due(mark, decided_to=firings[-1].due_at, firings=firings)

    kept = await case.second.schedules.list_firings("agent", limit=10 * MAX_FIRINGS)

    assert kept[0] == firings[-1]
    assert kept[-1] == firings[0]
    assert len(kept) <= MAX_FIRINGS + 2


SCHEDULE_CHECKS: tuple[Check, ...] = (
    check_schedules_are_added_replaced_and_removed,
    check_a_schedule_of_a_file_can_be_paused_and_later_added,
    check_a_due_time_is_decided_once,
    check_a_firing_is_settled_once,
    check_the_history_of_a_schedule_is_bounded_and_what_is_open_stays,
)
