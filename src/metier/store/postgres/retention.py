"""Runs that have ended, page by page over an index, and their removal in batches. See `store.base`."""

from collections.abc import Sequence
from datetime import datetime
from typing import Any, LiteralString

from metier.dataclass import dataclass
from metier.store.base import RunRow
from metier.store.machine import Machine
from metier.store.postgres.database import fetch_all
from metier.store.postgres.leases import build_holding
from metier.store.postgres.partitions import find_day
from metier.store.postgres.rows import SELECT_RUNS, build_run
from metier.store.postgres.schema import Connection
from metier.store.postgres.text import decode, encode

# Written like the condition of the index, with the words in it, so that the server uses the index.
_HAS_ENDED: LiteralString = "status IN ('completed', 'failed', 'timeout', 'escalated', 'canceled')"
# What an unfinished run ordered is not over as long as that one may ask how it ended. One value, not EXISTS: of that
# the server might make a hash of all runs there are.
_NO_PARENT_GOES_ON: LiteralString = (
    "(parent_run_id = '' OR coalesce((SELECT parent.status IN ('completed', 'failed', 'timeout', 'escalated',"
    " 'canceled') FROM agent_runs AS parent WHERE parent.run_id = agent_runs.parent_run_id), TRUE))"
)
_DELETIONS: tuple[LiteralString, ...] = (
    "DELETE FROM agent_approvals WHERE run_id = ANY(%s)",
    "DELETE FROM agent_approval_attempts WHERE run_id = ANY(%s)",
    "DELETE FROM agent_blob_names WHERE run_id = ANY(%s)",
    "DELETE FROM agent_receivers WHERE run_id = ANY(%s)",
    "DELETE FROM agent_runs WHERE run_id = ANY(%s)",
    "DELETE FROM agent_leases WHERE run_id = ANY(%s)",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """Which ended runs: see `Store.list_ended`."""

    updated_before: datetime
    after: RunRow | None
    number_below: int
    machine: Machine


async def find_ended(connection: Connection, wanted: Wanted, *, limit: int) -> list[RunRow]:
    """By the time of their last change, oldest first."""
    query = f"{SELECT_RUNS} WHERE {_HAS_ENDED} AND updated_at < %s AND {_NO_PARENT_GOES_ON}"
    values: list[object] = [wanted.updated_before]
    if wanted.after is not None:
        query += " AND (updated_at, number) > (%s, %s)"
        values += [wanted.after.updated_at, wanted.after.number]
    if wanted.number_below:
        query += " AND number < %s"
        values.append(wanted.number_below)
    rows = await fetch_all(connection, query + " ORDER BY updated_at, number LIMIT %s", (*values, limit))
    return [build_run(row, wanted.machine) for row in rows]


async def delete_runs(
    connection: Connection, run_ids: Sequence[str], *, machine: Machine, days_over: frozenset[str] = frozenset()
) -> list[str]:
    """Those of them that were there and that no process drives. Inside the caller's transaction.

    Entries of `days_over` stay: their whole tables are dropped afterwards.
    """
    rows = await fetch_all(
        connection,
        "SELECT run_id, owner, token, since, coalesce(extract(epoch FROM until - clock_timestamp()), 0)::float8,"
        " boot_id, process FROM agent_leases WHERE run_id = ANY(%s) ORDER BY run_id FOR UPDATE",
        ([encode(run_id) for run_id in run_ids],),
    )
    free = [str(run_id) for run_id, *holding in rows if _is_free(tuple(holding), machine)]
    with_entries = [run_id for run_id in free if find_day(run_id) not in days_over]
    await connection.execute("DELETE FROM agent_journal WHERE run_id = ANY(%s)", (with_entries,))
    for query in _DELETIONS:
        await connection.execute(query, (free,))
    return [decode(run_id) for run_id in free]


def _is_free(holding: tuple[Any, ...], machine: Machine) -> bool:
    columns: tuple[str, int, datetime | None, float, str, str] = holding
    return build_holding(columns).is_free(machine)
