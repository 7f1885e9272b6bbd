"""`store.usage.UsageStore` on PostgreSQL: each method one transaction."""

from collections.abc import Sequence
from datetime import datetime
from typing import LiteralString, cast

from psycopg.rows import TupleRow

from metier.store.postgres.database import Database, decode_text, encode_text, fetch_all, fetch_one
from metier.store.postgres.schema import Connection
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
    spread,
)
from metier.task_state import TaskState
from metier.telemetry.excerpt import one_line

_AMOUNTS: LiteralString = "calls, input_tokens, cached_tokens, output_tokens, cost_usd, unpriced_calls"
_SUMS: LiteralString = (
    "sum(calls)::bigint, sum(input_tokens)::bigint, sum(cached_tokens)::bigint, sum(output_tokens)::bigint,"
    " sum(cost_usd), sum(unpriced_calls)::bigint"
)
_ADD: LiteralString = ", ".join(f"{name} = total.{name} + excluded.{name}" for name in _AMOUNTS.split(", "))
_ENDED: LiteralString = "status IN ('completed', 'failed', 'timeout', 'escalated', 'canceled')"
_HOUR: LiteralString = "to_char(created_at AT TIME ZONE 'UTC', 'YYYY-MM-DD\"T\"HH24')"


_SELECT_UNRECORDED: LiteralString = f"SELECT run_id FROM agent_runs WHERE NOT has_usage AND {_ENDED}"  # noqa: S608 (fixed text)
_COUNT_UNRECORDED: LiteralString = f"SELECT count(*) FROM agent_runs WHERE NOT has_usage AND {_ENDED}"  # noqa: S608 (fixed text)
_COUNT_RUNS: LiteralString = (
    f"SELECT {_HOUR}, status, count(*) FROM agent_runs"  # noqa: S608 (fixed text)
    " WHERE created_at >= %s AND run_id NOT LIKE 'child-%%' GROUP BY 1, 2 ORDER BY 1, 2"
)
_FROM_TOTALS: LiteralString = " FROM agent_usage_totals WHERE dimension = %s AND grain = %s AND period >= %s"
_SELECT_RUN: LiteralString = f"SELECT hour, model, skill, {_AMOUNTS} FROM agent_run_usage WHERE run_id = %s"  # noqa: S608 (fixed text)
_INSERT_RUN: LiteralString = (
    f"INSERT INTO agent_run_usage (run_id, hour, model, skill, {_AMOUNTS})"  # noqa: S608 (fixed text)
    " VALUES (%s, %s, %s, %s, %s, %s, %s, %s, %s, %s)"
)
_ADD_TOTAL: LiteralString = (
    f"INSERT INTO agent_usage_totals AS total (dimension, grain, period, name, {_AMOUNTS})"  # noqa: S608 (fixed text)
    f" VALUES (%s, %s, %s, %s, %s, %s, %s, %s, %s, %s)"
    f" ON CONFLICT (dimension, grain, period, name) DO UPDATE SET {_ADD}"
)


class PostgresUsage:
    def __init__(self, database: Database) -> None:
        self._database = database

    async def record(self, run_id: str, rows: Sequence[UsageRow]) -> None:
        await self._database.once(lambda connection: _record(connection, run_id, rows))

    async def list_unrecorded(self, *, limit: int = 100) -> list[str]:
        found = await self._read(_SELECT_UNRECORDED + " ORDER BY number LIMIT %s", (limit,))
        return [decode_text(row[0]) for row in found]

    async def count_unrecorded(self) -> int:
        found = await self._read(_COUNT_UNRECORDED)
        return int(found[0][0])

    async def sum_by(self, grouping: UsageGrouping, span: Span = ALL_TIME, *, limit: int = 200) -> list[UsageTotal]:
        name: LiteralString = "left(period, 10)" if grouping == "day" else "name"
        order: LiteralString = "1" if grouping == "day" else "sum(cost_usd) DESC, sum(input_tokens) DESC, name"
        query: LiteralString = "SELECT " + name + ", " + _SUMS + _FROM_TOTALS + " GROUP BY 1 HAVING sum(calls) > 0"
        dimension = "model" if grouping == "day" else grouping
        found = await self._read(query + " ORDER BY " + order + " LIMIT %s", (dimension, *span, limit))
        return [UsageTotal(decode_text(row[0]), Amounts(*row[1:])) for row in found]

    async def sum_by_day(self, dimension: Dimension, span: Span = ALL_TIME, *, names: Sequence[str]) -> list[DayTotal]:
        query: LiteralString = "SELECT left(period, 10), name, " + _SUMS + _FROM_TOTALS
        query += " AND name = ANY(%s) GROUP BY 1, 2 HAVING sum(calls) > 0 ORDER BY 1, 2"
        found = await self._read(query, (dimension, *span, [encode_text(name) for name in names]))
        return [DayTotal(row[0], decode_text(row[1]), Amounts(*row[2:])) for row in found]

    async def count_created(self, *, since: datetime | None = None) -> tuple[int, int]:
        found = await self._read(
            "SELECT count(*), count(*) FILTER (WHERE status = 'completed') FROM agent_runs WHERE created_at >= %s",
            ("-infinity" if since is None else since,),
        )
        return int(found[0][0]), int(found[0][1])

    async def count_unfinished(self) -> dict[TaskState, int]:
        found = await self._read(
            "SELECT status, count(*) FROM agent_runs WHERE status = ANY(%s) GROUP BY 1", (list(UNFINISHED),)
        )
        # Statuses are written by `insert_run` and `update_run` only.
        return {cast("TaskState", row[0]): int(row[1]) for row in found}

    async def count_by_hour(self, *, since: datetime) -> list[RunCount]:
        found = await self._read(_COUNT_RUNS, (since.replace(minute=0, second=0, microsecond=0),))
        # Statuses are written by `insert_run` and `update_run` only.
        return [RunCount(row[0], cast("TaskState", row[1]), int(row[2])) for row in found]

    async def _read(self, query: LiteralString, values: tuple[object, ...] = ()) -> list[TupleRow]:
        return await self._database.run(lambda connection: fetch_all(connection, query, values))


async def _record(connection: Connection, run_id: str, rows: Sequence[UsageRow]) -> None:
    # The row lock keeps two processes from computing the same difference.
    run = await fetch_one(
        connection,
        "SELECT agent, task, to_char(updated_at AT TIME ZONE 'UTC', 'YYYY-MM-DD\"T\"HH24') FROM agent_runs"
        " WHERE run_id = %s FOR UPDATE",
        (encode_text(run_id),),
    )
    if run is None:
        return
    new = [row._replace(hour=row.hour or str(run[2])) for row in rows]
    found = await fetch_all(connection, _SELECT_RUN, (encode_text(run_id),))
    old = [UsageRow(row[0], decode_text(row[1]), decode_text(row[2]), Amounts(*row[3:])) for row in found]
    changes = compute_changes(old, new)
    if changes:
        await connection.execute("DELETE FROM agent_run_usage WHERE run_id = %s", (encode_text(run_id),))
        for row in new:
            await connection.execute(
                _INSERT_RUN,
                (encode_text(run_id), row.hour, encode_text(row.model), encode_text(row.skill), *row.amounts),
            )
    totals = spread(changes, agent=decode_text(run[0]), task=one_line(decode_text(run[1]), MAX_TASK_NAME))
    for (dimension, grain, period, name), amounts in totals.items():
        await connection.execute(
            _ADD_TOTAL,
            (dimension, grain, period, encode_text(name), *amounts),
        )
    await connection.execute(
        "UPDATE agent_runs SET has_usage = TRUE WHERE run_id = %s AND NOT has_usage", (encode_text(run_id),)
    )
