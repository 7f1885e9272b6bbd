"""Due times of schedules: cron in time zones, daylight saving, intervals, jitter, long absences."""

from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest

from metier.definitions.schedule import MAX_DUE, ScheduleDefinition, build_schedule, get_jitter, list_due, list_next
from metier.errors import ConfigError

BERLIN = ZoneInfo("Europe/Berlin")
NOON = datetime(2026, 11, 1, 12, tzinfo=UTC)


def cron(expression: str, timezone: str = "Europe/Berlin", **more: object) -> ScheduleDefinition:
    return build_schedule({"name": "s", "cron": expression, "timezone": timezone, "prompt": "go", **more})


def local(schedule: ScheduleDefinition, begin: datetime, count: int) -> list[str]:
    found = list_next(schedule, after=begin.astimezone(UTC), anchor=NOON, count=count)
    return [f"{moment.astimezone(BERLIN):%d %H:%M %Z}" for moment in found]


def test_skipped_times_are_due_after_a_dst_gap_and_repeated_times_once() -> None:
    before_spring = datetime(2026, 3, 28, 12, tzinfo=BERLIN)
    before_autumn = datetime(2026, 10, 24, 12, tzinfo=BERLIN)

    assert local(cron("30 2 * * *"), before_spring, 3) == ["29 03:00 CEST", "30 02:30 CEST", "31 02:30 CEST"]
    assert local(cron("30 2 * * *"), before_autumn, 2) == ["25 02:30 CEST", "26 02:30 CET"]
    in_second_hour = datetime(2026, 10, 25, 2, 10, tzinfo=BERLIN, fold=1)
    assert local(cron("30 2 * * *"), in_second_hour, 1) == ["26 02:30 CET"]


def test_an_expression_with_a_wildcard_uses_elapsed_time_across_dst_changes() -> None:
    begin = datetime(2026, 10, 25, 1, 15, tzinfo=BERLIN)

    assert local(cron("*/30 * * * *"), begin, 6) == [
        "25 01:30 CEST", "25 02:00 CEST", "25 02:30 CEST", "25 02:00 CET", "25 02:30 CET", "25 03:00 CET",
    ]  # fmt: skip


def test_due_times_of_a_year_are_unique_and_ordered_from_any_start() -> None:
    schedule = cron("15 */3 * * *")
    begin = datetime(2026, 1, 1, tzinfo=UTC)
    whole = list_next(schedule, after=begin, anchor=NOON, count=2000)

    pieces: list[datetime] = []
    after = begin
    for day in range(1, 250):
        found = list_due(schedule, after=after, now=begin + timedelta(days=day), anchor=NOON)
        pieces += found
        after = found[-1] if found else after

    assert pieces == whole[: len(pieces)]
    assert len(pieces) > 1980
    assert pieces == sorted(set(pieces))


def test_intervals_start_when_the_schedule_is_first_seen() -> None:
    schedule = build_schedule({"name": "s", "every": "90m", "prompt": "go"})

    found = list_next(schedule, after=NOON + timedelta(hours=4), anchor=NOON, count=2)

    assert found == [NOON + timedelta(hours=4.5), NOON + timedelta(hours=6)]
    assert list_due(schedule, after=NOON, now=NOON + timedelta(minutes=89), anchor=NOON) == []


def test_only_the_last_due_times_of_a_long_outage_are_listed() -> None:
    schedule = cron("* * * * *", timezone="UTC")
    now = NOON + timedelta(days=400)

    found = list_due(schedule, after=NOON, now=now, anchor=NOON)

    assert found[-1] == now
    assert MAX_DUE / 3 < len(found) <= MAX_DUE


def test_jitter_is_bounded_and_the_same_for_every_process() -> None:
    schedule = cron("0 * * * *", jitter="10m")
    dues = [NOON + timedelta(hours=hour) for hour in range(50)]

    delays = [get_jitter(schedule, due) for due in dues]

    assert delays == [get_jitter(schedule, due.astimezone(BERLIN)) for due in dues]
    assert all(timedelta() <= delay < timedelta(minutes=10) for delay in delays)
    assert len(set(delays)) == 50
    assert list_due(schedule, after=dues[0], now=dues[1], anchor=NOON) == []
    assert list_due(schedule, after=dues[0], now=dues[1] + delays[1], anchor=NOON) == [dues[1]]


@pytest.mark.parametrize(
    ("values", "sentence"),
    [
        ({"prompt": "go"}, "A schedule needs either 'cron' or 'every'"),
        ({"prompt": "go", "cron": "0 6 * * *", "every": "1h"}, "A schedule needs either 'cron' or 'every'"),
        ({"cron": "0 6 * * *"}, "A schedule needs either 'prompt' or 'task'"),
        ({"prompt": "go", "cron": "0 25 * * *"}, "is not a cron expression"),
        ({"prompt": "go", "cron": "0 0 30 2 *"}, "is not a cron expression"),
        ({"prompt": "go", "cron": "@daily", "timezone": "Europe/Bonn"}, "No time zone is called 'Europe/Bonn'"),
        ({"prompt": "go", "cron": "@daily", "timezone": "../../etc/passwd"}, "No time zone is called"),
        ({"prompt": "go", "every": "soon"}, "every: 'soon' is not a duration"),
        ({"prompt": "go", "every": "1h", "inputs": {"a": "b"}}, "'inputs' are for a 'task'"),
        ({"prompt": "go", "every": "1h", "overlap": "pile"}, "overlap: "),
    ],
)
def test_an_invalid_schedule_is_rejected_with_the_reason(values: dict[str, object], sentence: str) -> None:
    with pytest.raises(ConfigError) as refused:
        build_schedule({"name": "s", **values})

    assert sentence in refused.value.message
