"""Partitions of the journal by the day in the run ids, so that old days are dropped instead of deleted row by row.

Runs whose ids have no day are in `agent_journal_child` and `agent_journal_a2a`; entries older than their partition are
in `agent_journal_rest`.
"""

import re
from datetime import UTC, date, datetime, timedelta
from typing import LiteralString

import psycopg
from psycopg import sql

from metier.store.postgres.database import fetch_all, fetch_one
from metier.store.postgres.schema import Connection

_NAME = re.compile(r"agent_journal_(\d{8})")
_DAY = re.compile(r"(\d{8})-\d{6}-")
_LOCK_TIMEOUT: LiteralString = "SET LOCAL lock_timeout = '2s'"
"""Adding or dropping a partition blocks writers, so it gives up if one of them takes long."""
_MAX_REST_BYTES = 1_000_000_000
"""Adding a partition scans the rest while writers wait; the journal of an older version may be too large for that."""


def get_day(run_id: str) -> str:
    """Return the day on which a run started, such as `20261115`; empty if its id has none."""
    started = _DAY.match(run_id)
    return started[1] if started else ""


async def add_day(connection: Connection, day: str) -> None:
    """Create the partition of a day unless it exists. If that fails, entries go to the rest."""
    if await fetch_one(connection, "SELECT to_regclass(%s)", (f"agent_journal_{day}",)) != (None,):
        return
    size = await fetch_one(connection, "SELECT pg_relation_size('agent_journal_rest')")
    following = _parse(day)
    if following is None or size is None or size[0] > _MAX_REST_BYTES:
        return
    query = sql.SQL("CREATE TABLE IF NOT EXISTS {} PARTITION OF agent_journal FOR VALUES FROM ({}) TO ({})").format(
        sql.Identifier(f"agent_journal_{day}"), day, f"{following + timedelta(days=1):%Y%m%d}"
    )
    try:
        async with connection.transaction():
            await connection.execute(_LOCK_TIMEOUT)
            await connection.execute(query)
    except (psycopg.errors.CheckViolation, psycopg.errors.LockNotAvailable, psycopg.errors.DuplicateTable):
        return  # the rest already has entries of that day, or writers take long, or another process created it
    except psycopg.errors.UniqueViolation:
        return  # another process created it at the same moment


async def list_days(connection: Connection, before: datetime) -> list[str]:
    """List the days with a partition that ended before a time."""
    rows = await fetch_all(
        connection,
        "SELECT relname FROM pg_inherits JOIN pg_class ON pg_class.oid = inhrelid"
        " WHERE inhparent = 'agent_journal'::regclass ORDER BY relname",
    )
    last = f"{before.astimezone(UTC):%Y%m%d}"
    named = [_NAME.fullmatch(str(name)) for (name,) in rows]
    return [match[1] for match in named if match is not None and match[1] < last]


async def is_over(connection: Connection, day: str, before: datetime) -> bool:
    """Return True if every run of that day ended before a time and has no parent."""
    row = await fetch_one(
        connection,
        "SELECT 1 FROM agent_runs WHERE run_id >= %s AND run_id < %s AND (updated_at >= %s OR parent_run_id <> ''"
        " OR status NOT IN ('completed', 'failed', 'timeout', 'escalated', 'canceled')) LIMIT 1",
        (day, day + ":", before),
    )
    return row is None


async def drop_day(connection: Connection, day: str) -> None:
    """Drop the partition of a day without runs."""
    try:
        async with connection.transaction():
            await connection.execute(_LOCK_TIMEOUT)
            # Lock first, so that a concurrent import of a run of that day finishes and is seen by the check.
            await connection.execute(
                sql.SQL("LOCK TABLE {} IN ACCESS EXCLUSIVE MODE").format(sql.Identifier(f"agent_journal_{day}"))
            )
            left = await fetch_one(
                connection, "SELECT 1 FROM agent_runs WHERE run_id >= %s AND run_id < %s LIMIT 1", (day, day + ":")
            )
            if left is None:
                await connection.execute(sql.SQL("DROP TABLE {}").format(sql.Identifier(f"agent_journal_{day}")))
    except (psycopg.errors.LockNotAvailable, psycopg.errors.UndefinedTable):
        return  # writers take long, or another process dropped it; the next deletion tries again


def _parse(day: str) -> date | None:
    try:
        return datetime.strptime(day, "%Y%m%d").replace(tzinfo=UTC).date()
    except ValueError:
        return None
