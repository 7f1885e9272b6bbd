"""Usage of model calls: `store.usage.UsageStore` in SQL. Each method is one transaction."""

from collections.abc import Sequence
from datetime import UTC, datetime

from metier.decisions import TaskState
from metier.store.queries.session import Database, Session, SqlRow, SqlValue, parse_time
from metier.store.usage import (
    ALL_TIME,
    MAX_TASK_NAME,
    UNFINISHED,
    Amounts,
    DayTotal,
    Dimension,
    RunCount,
    RunTime,
    Span,
    UsageGrouping,
    UsageRow,
    UsageTotal,
    compute_changes,
    compute_totals,
)
from metier.telemetry.excerpt import one_line

_NAMES = ("calls", "input_tokens", "cached_tokens", "output_tokens", "cost_usd", "unpriced_calls")
_AMOUNTS = ", ".join(_NAMES)
# Cast, because PostgreSQL sums integers as decimals.
_SUMS = ", ".join(f"CAST(sum({name}) AS {'DOUBLE PRECISION' if name == 'cost_usd' else 'BIGINT'})" for name in _NAMES)
_ADD = ", ".join(f"{name} = total.{name} + excluded.{name}" for name in _NAMES)
_ENDED = "status IN ('completed', 'failed', 'timeout', 'escalated', 'canceled')"
_ENDED_OR_WAITING = "status NOT IN ('pending', 'in_progress')"
_UNFINISHED = ", ".join(f"'{status}'" for status in UNFINISHED)
_IN_SPAN = "FROM usage_totals WHERE dimension = ? AND grain = ? AND period >= ?"


class SqlUsage:
    def __init__(self, database: Database) -> None:
        self._database = database

    async def record(self, run_id: str, rows: Sequence[UsageRow]) -> None:
        await self._database.write(lambda db: _record(db, run_id, rows))

    async def list_unrecorded(self, *, limit: int = 100) -> list[str]:
        async def query(db: Session) -> list[str]:
            rows = await db.fetch_all(f"SELECT run_id {_from_unrecorded(db)} ORDER BY number LIMIT ?", (limit,))
            return [run_id for (run_id,) in rows]

        return await self._database.read(query)

    async def count_unrecorded(self) -> int:
        async def query(db: Session) -> int:
            row = await db.fetch_one(f"SELECT count(*) {_from_unrecorded(db)}")
            return int(row[0]) if row else 0

        return await self._database.read(query)

    async def sum_by(self, grouping: UsageGrouping, span: Span = ALL_TIME, *, limit: int = 200) -> list[UsageTotal]:
        name, order = "name", "sum(cost_usd) DESC, sum(input_tokens) DESC, name"
        if grouping == "day":
            name = order = "substr(period, 1, 10)"
        rows = await self._fetch(
            f"SELECT {name}, {_SUMS} {_IN_SPAN} GROUP BY {name} HAVING sum(calls) > 0 ORDER BY {order} LIMIT ?",
            ("model" if grouping == "day" else grouping, *span, limit),
        )
        return [UsageTotal(row[0], Amounts(*row[1:])) for row in rows]

    async def sum_by_day(self, dimension: Dimension, span: Span = ALL_TIME, *, names: Sequence[str]) -> list[DayTotal]:
        if not names:
            return []
        rows = await self._fetch(
            f"SELECT substr(period, 1, 10), name, {_SUMS} {_IN_SPAN} AND name IN ({', '.join('?' * len(names))})"
            " GROUP BY 1, 2 HAVING sum(calls) > 0 ORDER BY 1, 2",
            (dimension, *span, *names),
        )
        return [DayTotal(row[0], row[1], Amounts(*row[2:])) for row in rows]

    async def count_created(self, *, since: datetime | None = None) -> tuple[int, int]:
        where, values = ("WHERE created_at >= ?", [since]) if since else ("", [])
        rows = await self._fetch(
            f"SELECT count(*), count(*) FILTER (WHERE status = 'completed') FROM runs {where}",
            values,
        )
        return int(rows[0][0]), int(rows[0][1])

    async def count_unfinished(self) -> dict[TaskState, int]:
        rows = await self._fetch(f"SELECT status, count(*) FROM runs WHERE status IN ({_UNFINISHED}) GROUP BY status")
        return {status: int(runs) for status, runs in rows}

    async def count_by_hour(self, *, since: datetime) -> list[RunCount]:
        start = since.astimezone(UTC).replace(minute=0, second=0, microsecond=0)

        async def query(db: Session) -> list[RunCount]:
            rows = await db.fetch_all(
                f"SELECT {db.dialect.hour_of_creation}, status, count(*) FROM runs"
                " WHERE created_at >= ? AND run_id NOT LIKE 'child-%' GROUP BY 1, 2 ORDER BY 1, 2",
                (start,),
            )
            return [RunCount(hour, status, int(runs)) for hour, status, runs in rows]

        return await self._database.read(query)

    async def sample_times(self, *, since: datetime, sample_size: int) -> tuple[int, list[RunTime]]:
        # The index by creation has the number and all conditions, so only the rows of the sample are read.
        ended = f"FROM runs WHERE created_at >= ? AND run_id NOT LIKE 'child-%' AND {_ENDED}"

        async def query(db: Session) -> tuple[int, list[RunTime]]:
            row = await db.fetch_one(f"SELECT count(*) {ended}", (since,))
            count = int(row[0]) if row else 0
            rows = await db.fetch_all(
                "SELECT run_id, created_at, updated_at, status, model, agent, task_id"
                f" {ended} AND number % ? = 0 ORDER BY created_at DESC",
                (since, max(1, -(-count // sample_size))),
            )
            return count, [_build_time(row) for row in rows]

        return await self._database.read(query)

    async def _fetch(self, query: str, values: Sequence[SqlValue] = ()) -> list[SqlRow]:
        return await self._database.read(lambda db: db.fetch_all(query, values))


def _build_time(row: SqlRow) -> RunTime:
    run_id, created, updated, *rest = row
    created_at = parse_time(created)
    return RunTime(run_id, created_at, max(0.0, (parse_time(updated) - created_at).total_seconds()), *rest)


def _from_unrecorded(db: Session) -> str:
    # The index is named because SQLite, without statistics, would prefer the one by status and read every ended run.
    return f"FROM runs INDEXED BY runs_without_usage WHERE has_usage {db.dialect.is_false} AND {_ENDED_OR_WAITING}"


async def _record(db: Session, run_id: str, rows: Sequence[UsageRow]) -> None:
    # The lock keeps two processes from computing the same difference.
    run = await db.fetch_one(
        f"SELECT agent, task, {db.dialect.hour_of_update} FROM runs WHERE run_id = ? FOR UPDATE",
        (run_id,),
    )
    if run is None:
        return
    agent, task, hour = run
    new = [row._replace(hour=row.hour or hour) for row in rows]
    found = await db.fetch_all(f"SELECT hour, model, skill, {_AMOUNTS} FROM run_usage WHERE run_id = ?", (run_id,))
    changes = compute_changes([UsageRow(row[0], row[1], row[2], Amounts(*row[3:])) for row in found], new)
    if changes:
        await db.execute("DELETE FROM run_usage WHERE run_id = ?", (run_id,))
        for row in new:
            await db.execute(
                f"INSERT INTO run_usage (run_id, hour, model, skill, {_AMOUNTS}) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
                (run_id, row.hour, row.model, row.skill, *row.amounts),
            )
    for key, amounts in compute_totals(changes, agent=agent, task=one_line(task, MAX_TASK_NAME)).items():
        await db.execute(
            f"INSERT INTO usage_totals AS total (dimension, grain, period, name, {_AMOUNTS})"
            " VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"
            f" ON CONFLICT (dimension, grain, period, name) DO UPDATE SET {_ADD}",
            (*key, *amounts),
        )
    await db.execute("UPDATE runs SET has_usage = TRUE WHERE run_id = ?", (run_id,))
