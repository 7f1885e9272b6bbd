"""Tokens and cost of model calls, recorded per run and added up per hour and per day, so that sums read few rows.

Totals are kept when runs are deleted: that must not change the cost of a past month.
"""

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from itertools import product
from typing import Literal, NamedTuple, Protocol

from metier.decisions import TaskState

type Dimension = Literal["model", "agent", "skill", "task"]
type Grain = Literal["day", "hour"]
"""The length of a period of totals. Hours are for recent spans, days for longer ones, so that few rows are read."""
type UsageGrouping = Literal["model", "agent", "skill", "task", "day"]

DIMENSIONS: tuple[Dimension, ...] = ("model", "agent", "skill", "task")
UNFINISHED: tuple[TaskState, ...] = (
    "pending",
    "in_progress",
    "blocked",
    "input_required",
    "delegating",
    "paused",
)
MAX_TASK_NAME = 32
"""Length of a task's name in totals: the start of its text."""


class Amounts(NamedTuple):
    calls: int = 0
    input_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0
    cost_usd: float = 0.0
    unpriced_calls: int = 0
    """Calls of a model without a known price."""

    def plus(self, other: "Amounts", *, sign: int = 1) -> "Amounts":
        return Amounts(
            calls=self.calls + sign * other.calls,
            input_tokens=self.input_tokens + sign * other.input_tokens,
            cached_tokens=self.cached_tokens + sign * other.cached_tokens,
            output_tokens=self.output_tokens + sign * other.output_tokens,
            cost_usd=self.cost_usd + sign * other.cost_usd,
            unpriced_calls=self.unpriced_calls + sign * other.unpriced_calls,
        )


class UsageRow(NamedTuple):
    """The calls of one run to one model, within one hour, with one active skill."""

    hour: str
    """UTC, such as `2026-01-31T23`. If unknown, it is empty, and the time of the run's last change is used."""
    model: str
    skill: str
    amounts: Amounts


class UsageTotal(NamedTuple):
    name: str
    amounts: Amounts


class DayTotal(NamedTuple):
    day: str
    name: str
    amounts: Amounts


class RunCount(NamedTuple):
    hour: str
    """The hour in which the runs were created, in UTC."""
    status: TaskState
    runs: int


class RunTime(NamedTuple):
    """The duration of an ended run, from its creation to its last change."""

    run_id: str
    created_at: datetime
    seconds: float
    status: TaskState
    model: str
    agent: str
    task_id: str


class Span(NamedTuple):
    """The time since the start of a period."""

    grain: Grain = "day"
    start: str = ""
    """In the format of `UsageRow.hour`, or only its date; empty for all time."""


ALL_TIME = Span()


class UsageStore(Protocol):
    async def record(self, run_id: str, rows: Sequence[UsageRow]) -> None:
        """Replace the usage of a run; totals change by the difference. An unknown run is ignored."""
        ...

    async def list_unrecorded(self, *, limit: int = 100) -> list[str]:
        """List ended and waiting runs without recorded usage: imported ones, and those of older versions."""
        ...

    async def count_unrecorded(self) -> int: ...

    async def sum_by(self, grouping: UsageGrouping, span: Span = ALL_TIME, *, limit: int = 200) -> list[UsageTotal]:
        """Sum usage by group. Days are in order; other groups have the highest cost first."""
        ...

    async def sum_by_day(self, dimension: Dimension, span: Span = ALL_TIME, *, names: Sequence[str]) -> list[DayTotal]:
        """Sum the usage of these groups for each day."""
        ...

    async def count_created(self, *, since: datetime | None = None) -> tuple[int, int]:
        """Count the runs created since a time, and those of them that completed."""
        ...

    async def count_unfinished(self) -> dict[TaskState, int]:
        """Count the runs that have not ended, by status."""
        ...

    async def count_by_hour(self, *, since: datetime) -> list[RunCount]:
        """Count runs by the hour of their creation and by status, without child runs."""
        ...

    async def sample_times(self, *, since: datetime, sample_size: int) -> tuple[int, list[RunTime]]:
        """Count the ended runs that were created since a time, and return an even sample of them, newest first.

        Without child runs. Reading the times of all of 100,000 runs would take half a second.
        """
        ...


def format_hour(moment: datetime) -> str:
    return f"{moment.astimezone(UTC):%Y-%m-%dT%H}"


def parse_hour(moment: str) -> str:
    """Return the hour of a time in ISO 8601."""
    return format_hour(datetime.fromisoformat(moment))


def build_span(since: datetime, *, now: datetime) -> Span:
    """Return the span since a time, rounded down to its hour if that is within two days, or else to its day."""
    hour = format_hour(since)
    return Span("hour", hour) if now - since <= timedelta(days=2) else Span("day", hour[:10])


def compute_changes(old: Sequence[UsageRow], new: Sequence[UsageRow]) -> list[UsageRow]:
    """Compute the amounts to add to the totals so that they contain the new rows instead of the old ones."""
    changes: dict[tuple[str, str, str], Amounts] = {}
    for sign, rows in ((-1, old), (1, new)):
        for row in rows:
            key = row[:3]
            changes[key] = changes.get(key, Amounts()).plus(row.amounts, sign=sign)
    # Without rows that stay the same, so that recording a run twice writes nothing.
    return [UsageRow(*key, amounts) for key, amounts in changes.items() if any(amounts)]


type TotalKey = tuple[Dimension, Grain, str, str]
"""Dimension, grain, period and name."""


def compute_totals(changes: Sequence[UsageRow], *, agent: str, task: str) -> dict[TotalKey, Amounts]:
    """Add up the changes of a run for every total."""
    totals: dict[TotalKey, Amounts] = {}
    for row in changes:
        names: dict[Dimension, str] = {"model": row.model, "skill": row.skill or "none"}
        names |= {"agent": agent or "built in", "task": task}
        periods: dict[Grain, str] = {"day": row.hour[:10], "hour": row.hour}
        for (dimension, name), (grain, period) in product(names.items(), periods.items()):
            key = (dimension, grain, period, name)
            totals[key] = totals.get(key, Amounts()).plus(row.amounts)
    # Sorted, so that concurrent transactions lock rows in the same order and can't deadlock.
    return dict(sorted(totals.items()))
