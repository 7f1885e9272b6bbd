"""When a schedule is due. Pure: what the clock says is handed in, and every process gets the same answer.

Daylight saving follows Debian's cron: a fixed time that the clocks skip is due right after the gap, one that they show
twice is due once; `*` in minutes or hours goes by elapsed time.
"""

import hashlib
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from itertools import islice
from zoneinfo import ZoneInfo

from metier.definitions.cron import follow_cron
from metier.definitions.schedule import ScheduleDefinition

MOST_DUE = 200
"""Of the due times of a long absence only so many, the latest, are looked at and noted one by one."""


def iterate_times(schedule: ScheduleDefinition, *, after: datetime, anchor: datetime) -> Iterator[datetime]:
    """Due times in UTC, ascending, without end. `anchor` is where intervals begin to count."""
    if schedule.every:
        step = timedelta(seconds=schedule.every)
        number = max(0, (after - anchor) // step)
        while True:
            number += 1
            yield anchor + number * step
    previous = after
    # A time that the clocks show twice comes out as the first of the two, which may lie before where we began.
    for local in follow_cron(schedule.cron_fields, after.astimezone(ZoneInfo(schedule.timezone))):
        due = local.astimezone(UTC)
        if due > previous:
            previous = due
            yield due


def list_due(schedule: ScheduleDefinition, *, after: datetime, now: datetime, anchor: datetime) -> list[datetime]:
    """Due times later than `after` whose moment, jitter included, has come: in order, at most the last `MOST_DUE`."""
    begin = after
    while True:
        found: list[datetime] = []
        for due in islice(iterate_times(schedule, after=begin, anchor=anchor), MOST_DUE + 1):
            if due + find_jitter(schedule, due) > now:
                return found
            found.append(due)
        # A long absence: go on from the middle of what is left, rather than through all of it.
        begin += (now - begin) / 2


def list_next(schedule: ScheduleDefinition, *, after: datetime, anchor: datetime, count: int) -> list[datetime]:
    """When it is due next, jitter not counted."""
    return list(islice(iterate_times(schedule, after=after, anchor=anchor), count))


def find_jitter(schedule: ScheduleDefinition, due: datetime) -> timedelta:
    """How much later than its due time a run starts. The same in every process: it follows from name and time."""
    if not schedule.jitter:
        return timedelta()
    seed = hashlib.sha256(f"{schedule.name} {due.astimezone(UTC).isoformat()}".encode()).digest()
    return timedelta(seconds=schedule.jitter * int.from_bytes(seed[:8]) / 2**64)
