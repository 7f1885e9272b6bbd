"""The rows of the list of runs, page by page, and what happened in the last day."""

from collections import Counter
from datetime import UTC, datetime, timedelta

from msgspec import Struct

from metier.ids import CHILD
from metier.runtime.records.index_rows import find_listed_cost, get_shown_status
from metier.runtime.runs import Runtime
from metier.server.console.charts import Bar, BarChart, build_ticks, round_up, stack
from metier.server.console.run_filter import RunFilter
from metier.store.base import ENDED, RunRow
from metier.store.usage import format_hour
from metier.views.page.environment import count as count_things

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


class LastDay(Struct, frozen=True, kw_only=True):
    """Runs that were started in the last 24 clock hours."""

    runs: int
    failed: int
    chart: BarChart


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


async def read_last_day(runtime: Runtime, *, now: datetime) -> LastDay:
    began = now.astimezone(UTC).replace(minute=0, second=0, microsecond=0) - timedelta(hours=HOURS - 1)
    counts = await runtime.store.usage.count_by_hour(since=began)
    runs, failed = Counter[str](), Counter[str]()
    for count in counts:
        runs[count.hour] += count.runs
        failed[count.hour] += count.runs if count.status in _FAILED else 0
    top, step = round_up(max(runs.values(), default=0), is_whole=True)
    bars: list[Bar] = []
    for number in range(HOURS):
        hour = began + timedelta(hours=number)
        key = format_hour(hour)
        parts = stack([("bad", "failed", failed[key]), ("1", "others", runs[key] - failed[key])], top=top)
        title = f"{hour:%H:%M} UTC: {count_things(runs[key], 'run')}, {failed[key]:,} failed"
        bars.append(Bar(label=f"{hour:%H:%M}", title=title, hour=hour.isoformat(), parts=parts))
    ticks = build_ticks(top, step, lambda value: f"{value:,.0f}")
    chart = BarChart(bars=tuple(bars), ticks=ticks)
    return LastDay(runs=runs.total(), failed=failed.total(), chart=chart)
