"""Checks of the store contract: the usage of runs."""

from dataclasses import replace
from datetime import timedelta

import anyio

from metier.store.usage import Amounts, RunCount, Span, UsageRow, build_span
from metier.testing.store_case import NOON, Case, Check, build_run

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


async def check_usage_before_a_time_is_left_out(case: Case) -> None:
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
    async with anyio.create_task_group() as group:
        for store in (case.first, case.second) * 4:
            group.start_soon(store.usage.record, "r1", [_FIRST, _LATER])
    assert sum(total.amounts.calls for total in await case.first.usage.sum_by("model")) == 3


async def check_totals_outlive_the_run(case: Case) -> None:
    await case.first.create_run(build_run("r1"))
    await case.first.usage.record("r1", [_FIRST])
    await case.first.delete_run("r1")

    assert [total.amounts for total in await case.second.usage.sum_by("model")] == [_CALL]
    assert await case.second.usage.count_created() == (0, 0)


async def check_usage_without_a_time_counts_for_the_last_change(case: Case) -> None:
    await case.first.create_run(build_run("r1"))
    await case.first.usage.record("r1", [_FIRST._replace(hour="")])

    (total,) = await case.second.usage.sum_by("day")
    assert total.name == f"{NOON:%Y-%m-%d}"


async def check_ended_runs_without_recorded_usage_are_listed(case: Case) -> None:
    for number, run_id in enumerate(("r1", "r2", "r3")):
        status = "in_progress" if run_id == "r3" else "completed"
        await case.first.create_run(replace(build_run(run_id), status=status, turns=number))
    await case.first.usage.record("r1", [])

    assert await case.second.usage.list_unrecorded() == ["r2"]
    assert await case.second.usage.count_unrecorded() == 1


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

    count, every = await case.second.usage.sample_times(since=NOON, most=100)
    assert (count, [time.run_id for time in every]) == (9, [f"r{number}" for number in reversed(range(9))])
    assert [time.seconds for time in every][:2] == [8.0, 7.0]
    later = NOON + timedelta(minutes=3)
    count, some = await case.second.usage.sample_times(since=later, most=3)
    assert count == 6
    assert 2 <= len(some) <= 3
    assert {time.created_at >= later for time in some} == {True}


USAGE_CHECKS: tuple[Check, ...] = (
    check_usage_is_summed_by_each_group,
    check_usage_before_a_time_is_left_out,
    check_recording_usage_again_replaces_it,
    check_usage_recorded_at_once_is_counted_once,
    check_totals_outlive_the_run,
    check_usage_without_a_time_counts_for_the_last_change,
    check_ended_runs_without_recorded_usage_are_listed,
    check_runs_are_counted_by_hour_and_status,
    check_times_of_ended_runs_are_sampled,
)
