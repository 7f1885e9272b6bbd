"""The rows of the list of runs, page by page, and what happened in the last day."""

from datetime import UTC, datetime, timedelta

from msgspec import Struct

from metier.ids import CHILD
from metier.runtime.records.index_rows import find_listed_cost, get_shown_status
from metier.runtime.runs import Runtime
from metier.server.console.run_filter import RunFilter
from metier.store.base import ENDED, RunRow
from metier.store.usage import format_hour

PAGE = 50
_READ = PAGE + 1
_MAX_READ = 2_000
"""Rows that one request looks at where the store cannot tell a state that people know."""
HOURS = 24
_FAILED = tuple(status for status in ENDED if status not in ("completed", "canceled"))


class ListedRun(Struct, frozen=True, kw_only=True):
    run_id: str
    status: str
    task: str
    agent: str
    model: str
    turns: int
    cost_usd: float | None
    tokens: int | None
    """None where the index did not count them."""
    created_at: datetime
    seconds: float
    """From its beginning to its last change."""
    is_child: bool


class RunList(Struct, frozen=True, kw_only=True):
    runs: tuple[ListedRun, ...]
    next_cursor: int
    """For the page that follows; 0 where there is none."""


class HourOfRuns(Struct, frozen=True, kw_only=True):
    began: datetime
    runs: int
    failed: int


async def list_page(runtime: Runtime, wanted: RunFilter, *, before: int = 0) -> RunList:
    """The next runs that fit, newest first."""
    found: list[RunRow] = []
    last, read = before, 0
    while len(found) <= PAGE and read < _MAX_READ:
        rows = await runtime.store.search_runs(wanted.search, before=last, limit=_READ)
        if not rows:
            break
        last, read = rows[-1].number, read + len(rows)
        found += [row for row in rows if wanted.fits(row)]
    more = found[PAGE - 1].number if len(found) > PAGE else last if read >= _MAX_READ else 0
    return RunList(runs=tuple(build_listed(row) for row in found[:PAGE]), next_cursor=more)


def build_listed(row: RunRow) -> ListedRun:
    return ListedRun(
        run_id=row.run_id,
        status=get_shown_status(row),
        task=row.task,
        agent=row.agent,
        model=row.model,
        turns=row.turns,
        cost_usd=find_listed_cost(row.cost_usd, turns=row.turns, model=row.model),
        tokens=row.tokens if row.tokens or not row.turns else None,
        created_at=row.created_at,
        seconds=max(0.0, (row.updated_at - row.created_at).total_seconds()),
        is_child=row.run_id.startswith(CHILD),
    )


async def read_last_day(runtime: Runtime, *, now: datetime) -> tuple[HourOfRuns, ...]:
    """Return the runs of the last 24 clock hours, oldest first; the last hour is the current one."""
    began = now.astimezone(UTC).replace(minute=0, second=0, microsecond=0) - timedelta(hours=HOURS - 1)
    counts = await runtime.store.usage.count_by_hour(since=began)
    hours: list[HourOfRuns] = []
    for number in range(HOURS):
        hour = began + timedelta(hours=number)
        inside = [count for count in counts if count.hour == format_hour(hour)]
        failed = sum(count.runs for count in inside if count.status in _FAILED)
        hours.append(HourOfRuns(began=hour, runs=sum(count.runs for count in inside), failed=failed))
    return tuple(hours)
