"""`store.usage.UsageStore` on SQLite: each method one transaction of the file that also holds the runs."""

import sqlite3
from collections.abc import Sequence
from datetime import datetime
from functools import partial
from typing import cast

from metier.store.base import make_printable
from metier.store.sqlite.database import Database
from metier.store.sqlite.run_index import render_time
from metier.store.usage import (
    ALL_TIME,
    MAX_TASK_NAME,
    UNFINISHED,
    Amounts,
    DayTotal,
    Dimension,
    RunCount,
    Span,
    UsageGrouping,
    UsageRow,
    UsageTotal,
    compute_changes,
    format_hour,
    spread,
)
from metier.task_state import TaskState
from metier.telemetry.excerpt import one_line

_AMOUNTS = "calls, input_tokens, cached_tokens, output_tokens, cost_usd, unpriced_calls"
_SUMS = ", ".join(f"sum({name})" for name in _AMOUNTS.split(", "))
_ADD = ", ".join(f"{name} = {name} + excluded.{name}" for name in _AMOUNTS.split(", "))
# The index is named: without statistics SQLite would rather use the one by status, and read every ended run.
_UNRECORDED = (
    "FROM runs INDEXED BY runs_without_usage WHERE has_usage = 0"
    " AND status IN ('completed', 'failed', 'timeout', 'escalated', 'canceled')"
)


class SqliteUsage:
    def __init__(self, database: Database) -> None:
        self._database = database

    async def record(self, run_id: str, rows: Sequence[UsageRow]) -> None:
        await self._database.write(partial(_record, run_id=run_id, rows=rows))

    async def list_unrecorded(self, *, limit: int = 100) -> list[str]:
        def query(connection: sqlite3.Connection) -> list[str]:
            found = connection.execute(f"SELECT run_id {_UNRECORDED} ORDER BY number LIMIT ?", (limit,))
            return [str(run_id) for (run_id,) in found]

        return await self._database.read(query)

    async def count_unrecorded(self) -> int:
        def query(connection: sqlite3.Connection) -> int:
            return int(connection.execute(f"SELECT count(*) {_UNRECORDED}").fetchone()[0])

        return await self._database.read(query)

    async def sum_by(self, grouping: UsageGrouping, span: Span = ALL_TIME, *, limit: int = 200) -> list[UsageTotal]:
        name, order = ("name", "sum(cost_usd) DESC, sum(input_tokens) DESC, name")
        dimension = "model" if grouping == "day" else grouping
        if grouping == "day":
            name = order = "substr(period, 1, 10)"

        def query(connection: sqlite3.Connection) -> list[UsageTotal]:
            found = connection.execute(
                f"SELECT {name}, {_SUMS} FROM usage_totals WHERE dimension = ? AND grain = ? AND period >= ?"  # noqa: S608 (fixed names)
                f" GROUP BY {name} HAVING sum(calls) > 0 ORDER BY {order} LIMIT ?",
                (dimension, *span, limit),
            )
            return [UsageTotal(str(row[0]), Amounts(*row[1:])) for row in found]

        return await self._database.read(query)

    async def sum_by_day(self, dimension: Dimension, span: Span = ALL_TIME, *, names: Sequence[str]) -> list[DayTotal]:
        def query(connection: sqlite3.Connection) -> list[DayTotal]:
            found = connection.execute(
                f"SELECT substr(period, 1, 10), name, {_SUMS} FROM usage_totals"  # noqa: S608 (fixed names)
                f" WHERE dimension = ? AND grain = ? AND period >= ? AND name IN ({', '.join('?' * len(names))})"
                " GROUP BY 1, 2 HAVING sum(calls) > 0 ORDER BY 1, 2",
                (dimension, *span, *names),
            )
            return [DayTotal(str(row[0]), str(row[1]), Amounts(*row[2:])) for row in found]

        return await self._database.read(query)

    async def count_created(self, *, since: datetime | None = None) -> tuple[int, int]:
        begun = "" if since is None else render_time(since)

        def query(connection: sqlite3.Connection) -> tuple[int, int]:
            runs, completed = connection.execute(
                "SELECT count(*), coalesce(sum(status = 'completed'), 0) FROM runs WHERE created_at >= ?", (begun,)
            ).fetchone()
            return int(runs), int(completed)

        return await self._database.read(query)

    async def count_unfinished(self) -> dict[TaskState, int]:
        def query(connection: sqlite3.Connection) -> dict[TaskState, int]:
            # One look into the index per status: it does not touch the ended runs, which are nearly all.
            count = "SELECT count(*) FROM runs WHERE status = ?"
            return {
                status: number
                for status in UNFINISHED
                if (number := int(connection.execute(count, (status,)).fetchone()[0]))
            }

        return await self._database.read(query)

    async def count_by_hour(self, *, since: datetime) -> list[RunCount]:
        def query(connection: sqlite3.Connection) -> list[RunCount]:
            found = connection.execute(
                "SELECT substr(created_at, 1, 13), status, count(*) FROM runs"
                " WHERE created_at >= ? AND run_id NOT LIKE 'child-%' GROUP BY 1, 2 ORDER BY 1, 2",
                (format_hour(since),),
            )
            # Statuses are written by `insert_run` and `update_run` only.
            return [RunCount(str(hour), cast("TaskState", status), int(runs)) for hour, status, runs in found]

        return await self._database.read(query)


def _record(connection: sqlite3.Connection, *, run_id: str, rows: Sequence[UsageRow]) -> None:
    run = connection.execute("SELECT agent, task, updated_at FROM runs WHERE run_id = ?", (run_id,)).fetchone()
    if run is None:
        return
    agent, task, updated_at = map(str, run)
    new = [
        UsageRow(row.hour or updated_at[:13], make_printable(row.model), make_printable(row.skill), row.amounts)
        for row in rows
    ]
    found = connection.execute(f"SELECT hour, model, skill, {_AMOUNTS} FROM run_usage WHERE run_id = ?", (run_id,))  # noqa: S608 (fixed names)
    old = [UsageRow(row[0], row[1], row[2], Amounts(*row[3:])) for row in found]
    changes = compute_changes(old, new)
    if changes:
        connection.execute("DELETE FROM run_usage WHERE run_id = ?", (run_id,))
        connection.executemany(
            f"INSERT INTO run_usage (run_id, hour, model, skill, {_AMOUNTS}) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",  # noqa: S608 (fixed names)
            [(run_id, *row[:3], *row.amounts) for row in new],
        )
    totals = spread(changes, agent=agent, task=one_line(task, MAX_TASK_NAME))
    connection.executemany(
        f"INSERT INTO usage_totals (dimension, grain, period, name, {_AMOUNTS}) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"  # noqa: S608 (fixed names)
        f" ON CONFLICT (dimension, grain, period, name) DO UPDATE SET {_ADD}",
        [(*key, *amounts) for key, amounts in totals.items()],
    )
    connection.execute("UPDATE runs SET has_usage = 1 WHERE run_id = ? AND has_usage = 0", (run_id,))
