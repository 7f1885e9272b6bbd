"""The rows of the list of runs, page by page, and what happened in the last day."""

from collections.abc import Sequence
from datetime import datetime, timedelta

from metier.dataclass import dataclass
from metier.ids import CHILD
from metier.runtime.records.known_cost import find_listed_cost
from metier.runtime.records.row_documents import find_shown_status
from metier.runtime.runs import Runtime
from metier.server.console.run_filter import RunFilter
from metier.store.base import ENDED, RunRow
from metier.store.search import RunSearch

PAGE = 50
_READ = PAGE + 1
_MOST_READ = 2_000
"""Rows that one request looks at where the store cannot tell a state that people know."""
HOURS = 24


@dataclass(frozen=True, slots=True, kw_only=True)
class ListedRun:
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


@dataclass(frozen=True, slots=True, kw_only=True)
class RunList:
    runs: tuple[ListedRun, ...]
    next_cursor: int
    """For the page that follows; 0 where there is none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HourOfRuns:
    began: datetime
    runs: int
    failed: int


async def list_page(runtime: Runtime, wanted: RunFilter, *, before: int = 0) -> RunList:
    """The next runs that fit, newest first."""
    found: list[RunRow] = []
    last, read = before, 0
    while len(found) <= PAGE and read < _MOST_READ:
        rows = await runtime.store.search_runs(wanted.search, before=last, limit=_READ)
        if not rows:
            break
        last, read = rows[-1].number, read + len(rows)
        found += [row for row in rows if wanted.fits(row)]
    more = found[PAGE - 1].number if len(found) > PAGE else last if read >= _MOST_READ else 0
    return RunList(runs=tuple(build_listed(row) for row in found[:PAGE]), next_cursor=more)


def build_listed(row: RunRow) -> ListedRun:
    return ListedRun(
        run_id=row.run_id,
        status=find_shown_status(row),
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
    """Of the newest runs, as many as a chart of a day can tell apart."""
    search = RunSearch(begun_since=now - timedelta(hours=HOURS), without_children=True)
    return count_by_hour(await runtime.store.search_runs(search, limit=_MOST_READ), now=now)


def count_by_hour(rows: Sequence[RunRow], *, now: datetime) -> tuple[HourOfRuns, ...]:
    """Oldest first; the last one is the hour that ends now."""
    counts = [[0, 0] for _ in range(HOURS)]
    for row in rows:
        age = int((now - row.created_at).total_seconds() // 3600)
        if 0 <= age < HOURS and not row.run_id.startswith(CHILD):
            counts[HOURS - 1 - age][0] += 1
            counts[HOURS - 1 - age][1] += row.status in ENDED and row.status not in ("completed", "canceled")
    began = now - timedelta(hours=HOURS)
    return tuple(
        HourOfRuns(began=began + timedelta(hours=number), runs=runs, failed=failed)
        for number, (runs, failed) in enumerate(counts)
    )
