"""Runs that have ended, page by page over an index, and their removal in batches. See `store.base`.

All inside the caller's transaction.
"""

import json
import sqlite3
from collections.abc import Sequence
from datetime import datetime

from metier.dataclass import dataclass
from metier.store.base import RunRow
from metier.store.machine import Machine
from metier.store.sqlite.leases import build_holding
from metier.store.sqlite.rows import SELECT_RUNS, build_run, render_time

# Named, because without statistics SQLite would rather use the one by status, and sort. The condition is written like
# that of the index, with the words in it.
_SELECT = SELECT_RUNS.replace("FROM runs", "FROM runs INDEXED BY runs_by_end")
_HAS_ENDED = "status IN ('completed', 'failed', 'timeout', 'escalated', 'canceled')"
# What an unfinished run ordered is not over as long as that one may ask how it ended.
_NO_PARENT_GOES_ON = (
    "(parent_run_id = '' OR NOT EXISTS (SELECT 1 FROM runs AS parent WHERE parent.run_id = runs.parent_run_id"
    " AND parent.status NOT IN ('completed', 'failed', 'timeout', 'escalated', 'canceled')))"
)
_TABLES = ("journal", "approvals", "approval_attempts", "leases", "blob_names", "receivers", "runs")


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """Which ended runs: see `Store.list_ended`."""

    updated_before: datetime
    after: RunRow | None
    number_below: int
    machine: Machine


def find_ended(connection: sqlite3.Connection, wanted: Wanted, *, limit: int) -> list[RunRow]:
    """By the time of their last change, oldest first."""
    cursor = ("", 0) if wanted.after is None else (render_time(wanted.after.updated_at), wanted.after.number)
    rows = connection.execute(
        f"{_SELECT} WHERE {_HAS_ENDED} AND updated_at < ? AND (updated_at, number) > (?, ?)"
        f" AND (? = 0 OR number < ?) AND {_NO_PARENT_GOES_ON} ORDER BY updated_at, number LIMIT ?",
        (render_time(wanted.updated_before), *cursor, wanted.number_below, wanted.number_below, limit),
    )
    return [build_run(row, wanted.machine) for row in rows]


def delete_runs(connection: sqlite3.Connection, run_ids: Sequence[str], *, machine: Machine) -> list[str]:
    """Those of them that were there and that no process drives."""
    found = connection.execute(
        "SELECT runs.run_id, coalesce(owner, ''), coalesce(token, 0), coalesce(since, ''), coalesce(boot_id, ''),"
        " coalesce(until, 0.0), coalesce(process, '')"
        " FROM json_each(?) AS wanted JOIN runs ON runs.run_id = wanted.value"
        " LEFT JOIN leases ON leases.run_id = runs.run_id",
        (json.dumps(list(run_ids)),),
    ).fetchall()
    free = [str(run_id) for run_id, *holding in found if build_holding(tuple(holding)).is_free(machine)]
    ids = json.dumps(free)
    for table in _TABLES:
        connection.execute(f"DELETE FROM {table} WHERE run_id IN (SELECT value FROM json_each(?))", (ids,))  # noqa: S608 (fixed names)
    return free
