"""The PostgreSQL store, shared by many machines. See `store.base`; leases use the server's clock.

The journal is partitioned by the day in the run ids, so that old days are dropped instead of deleted row by row. Runs
whose ids have no day are in `agent_journal_child` and `agent_journal_a2a`; entries older than their partition are in
`agent_journal_rest`.
"""

import asyncio
import contextlib
import re
from collections.abc import Awaitable, Callable, Sequence
from datetime import UTC, date, datetime, timedelta
from typing import LiteralString

import anyio
import psycopg
from psycopg import sql

from metier.store.base import MAX_UNFLUSHED, Lease, RunRow, StoredEntry
from metier.store.failures import LeaseLost, StoreDamaged
from metier.store.machine import Machine, SystemMachine
from metier.store.postgres.database import (
    Address,
    PoolOptions,
    PostgresDatabase,
    connect,
    decode_text,
    fetch_all,
    fetch_one,
    open_database,
)
from metier.store.postgres.schema import Connection
from metier.store.queries import journal, run_index
from metier.store.queries.session import Session
from metier.store.sql_store import SqlStore

CHANNEL = "agent_journal"
POLL_SECONDS = (0.05, 1.0)
"""First and longest pause between polls, which find entries whose notification was lost."""
_MARK_SECONDS = 30.0
"""Time for which writers notify a waiting process after it marked the run as watched."""
_RECONNECT_SECONDS = 1.0


async def open_postgres_store(
    address: Address,
    *,
    machine: Machine | None = None,
    pool: PoolOptions | None = None,
    blob_grace_seconds: float = 3600.0,
) -> "PostgresStore":
    """Connect and migrate the tables. Raises `StoreUnavailable`. The store is bound to the current event loop."""
    database = await open_database(address, pool or PoolOptions())
    return PostgresStore(database, machine=machine or SystemMachine(), blob_grace_seconds=blob_grace_seconds)


class PostgresStore(SqlStore):
    """`store.base.Store` on PostgreSQL, opened by `open_postgres_store`."""

    def __init__(self, database: PostgresDatabase, *, machine: Machine, blob_grace_seconds: float) -> None:
        super().__init__(database, machine=machine, blob_grace_seconds=blob_grace_seconds)
        self._server = database
        self._watcher = Watcher(database)
        self._days: set[str] = set()
        """Days for which a partition was created or attempted."""
        self._unflushed: dict[Lease, list[StoredEntry]] = {}
        """Entries that a server crash may lose."""

    async def create_run(self, row: RunRow, entries: Sequence[StoredEntry] = ()) -> None:
        # Before the first entry: a partition can't be added once the rest has entries of its day.
        await self._add_day(row.run_id)
        await super().create_run(row, entries)

    async def begin_run(self, row: RunRow, entries: Sequence[StoredEntry], *, owner: str, seconds: float) -> Lease:
        await self._add_day(row.run_id)
        return await super().begin_run(row, entries, owner=owner, seconds=seconds)

    async def append(
        self, lease: Lease, first_seq: int, entries: Sequence[StoredEntry], *, durable: bool = True
    ) -> None:
        """Append entries; if `durable` is False, without waiting for the server's disk.

        Commits of one database reach the disk in order, so a durable append makes all earlier ones durable. If the
        server crashes, this process still has the lost entries and writes them again.
        """
        unflushed = self._unflushed.get(lease, [])
        # Bounds the memory of the driver and what two crashes at once can lose.
        durable = durable or len(unflushed) >= MAX_UNFLUSHED
        try:
            await super().append(lease, first_seq, entries, durable=durable)
        except StoreDamaged:
            # A restarted server may have lost entries that it had not flushed.
            lost = await self._list_lost(lease, first_seq)
            if not lost:
                raise
            durable = True
            await super().append(lease, lost[0].seq, [*lost, *entries], durable=durable)
        except LeaseLost:
            # Another process continues the journal, so these entries must not be written again.
            self._unflushed.pop(lease, None)
            raise
        if durable and entries:
            self._unflushed.pop(lease, None)
        elif entries:
            self._unflushed[lease] = [*unflushed, *entries]

    async def release_lease(self, lease: Lease) -> None:
        await super().release_lease(lease)
        # This commit is durable, and so are all earlier ones.
        self._unflushed.pop(lease, None)

    async def wait_for_entries(self, run_id: str, *, after: int, seconds: float) -> bool:
        async def has_arrived() -> bool:
            return bool(await self.read_journal(run_id, after=after, limit=1))

        with anyio.move_on_after(seconds):
            await self._watcher.wait(run_id, has_arrived)
            return True
        return False

    async def delete_runs(self, run_ids: Sequence[str], *, updated_before: datetime | None = None) -> list[str]:
        keep = await self._list_runs_in_old_days(run_ids, updated_before)
        return await self._server.write(
            lambda db: run_index.delete_runs(db, run_ids, machine=self._machine, keep_journal_of=keep)
        )

    async def reclaim(self, *, updated_before: datetime | None = None) -> None:
        if updated_before is not None:
            days = await self._server.run(lambda connection: _list_partition_days(connection, updated_before))
            for day in days:
                await self._server.run(lambda connection, day=day: _drop_partition(connection, day))
        await super().reclaim(updated_before=updated_before)

    async def close(self) -> None:
        with anyio.CancelScope(shield=True):
            await self._watcher.close()
        await super().close()

    async def _add_day(self, run_id: str) -> None:
        day = _get_day(run_id)
        if day and day not in self._days:
            await self._server.run(lambda connection: _add_partition(connection, day))
            self._days.add(day)

    async def _list_lost(self, lease: Lease, first_seq: int) -> list[StoredEntry]:
        """Return the entries before `first_seq` that the server lost, if this process has all of them."""
        last = await self._server.read(lambda db: journal.get_last_seq(db, lease.run_id))
        lost = [entry for entry in self._unflushed.get(lease, ()) if entry.seq > last]
        return lost if [entry.seq for entry in lost] == list(range(last + 1, first_seq)) else []

    async def _list_runs_in_old_days(self, run_ids: Sequence[str], before: datetime | None) -> frozenset[str]:
        """List the runs whose entries don't have to be deleted because the partition of their day can be dropped."""
        if before is None:
            return frozenset()
        days = {run_id: _get_day(run_id) for run_id in run_ids}

        async def query(connection: Connection) -> frozenset[str]:
            old = set(days.values()).intersection(await _list_partition_days(connection, before))
            over = {day for day in old if await _is_day_over(connection, day, before)}
            return frozenset(run_id for run_id, day in days.items() if day in over)

        return await self._server.run(query)


class Watcher:
    """Waits for journal entries of any process, through notifications and, as a fallback, by polling."""

    def __init__(self, database: PostgresDatabase, *, poll_seconds: tuple[float, float] = POLL_SECONDS) -> None:
        self._database = database
        self._poll_seconds = poll_seconds
        self._waiting: dict[str, set[anyio.Event]] = {}
        self._listener: asyncio.Task[None] | None = None

    async def wait(self, run_id: str, has_arrived: Callable[[], Awaitable[bool]]) -> None:
        """Wait until `has_arrived` returns true. The caller limits the wait by canceling it."""
        if self._listener is None or self._listener.done():
            self._listener = asyncio.create_task(self._listen(), name="listen for journal entries")
        pause, marked_at = self._poll_seconds[0], -_MARK_SECONDS
        while True:
            # Registered before the check, so that a notification between the check and the wait isn't missed.
            notice = anyio.Event()
            self._waiting.setdefault(run_id, set()).add(notice)
            try:
                # Marked again at half-time, so that writers never stop notifying while this process waits.
                if anyio.current_time() - marked_at > _MARK_SECONDS / 2:
                    await self._mark(run_id)
                    marked_at = anyio.current_time()
                if await has_arrived():
                    return
                with anyio.move_on_after(pause):
                    await notice.wait()
            finally:
                self._forget(run_id, notice)
            pause = min(self._poll_seconds[1], pause * 2)

    async def close(self) -> None:
        if self._listener is not None:
            self._listener.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._listener
            self._listener = None

    async def _mark(self, run_id: str) -> None:
        async def change(db: Session) -> None:
            await db.execute(
                "UPDATE leases SET watched_until = clock_timestamp() + make_interval(secs => ?) WHERE run_id = ?",
                (_MARK_SECONDS, run_id),
            )

        await self._database.write(change, repeatable=True)

    def _forget(self, run_id: str, notice: anyio.Event) -> None:
        others = self._waiting.get(run_id, set())
        others.discard(notice)
        if not others:
            self._waiting.pop(run_id, None)

    async def _listen(self) -> None:
        """Listen until canceled, replacing broken connections."""
        while True:
            # Nothing is missed while the connection is broken: waiting tasks poll, too.
            with contextlib.suppress(psycopg.Error):
                # Not from the pool: listening occupies a connection for as long as the store is open.
                async with await connect(self._database.address) as connection:
                    await connection.execute(f"LISTEN {CHANNEL}")
                    # Closed explicitly: if the server went away, only the garbage collector would close the generator.
                    async with contextlib.aclosing(connection.notifies()) as notifications:
                        async for notification in notifications:
                            for notice in self._waiting.get(decode_text(notification.payload), ()):
                                notice.set()
            await asyncio.sleep(_RECONNECT_SECONDS)


_NAME = re.compile(r"agent_journal_(\d{8})")
_DAY = re.compile(r"(\d{8})-\d{6}-")
_LOCK_TIMEOUT: LiteralString = "SET LOCAL lock_timeout = '2s'"
"""Adding or dropping a partition blocks writers, so it gives up if it doesn't get its lock soon."""
_MAX_REST_BYTES = 1_000_000_000
"""Adding a partition scans the rest while writers wait. The journal of an older version may be too large for that."""


def _get_day(run_id: str) -> str:
    """Return the day on which a run started, such as `20261115`; empty if its id has none."""
    started = _DAY.match(run_id)
    return started[1] if started else ""


async def _add_partition(connection: Connection, day: str) -> None:
    """Create the partition of a day unless it exists. If that fails, its entries are stored in the rest."""
    if await fetch_one(connection, "SELECT to_regclass(%s)", (f"agent_journal_{day}",)) != (None,):
        return
    size = await fetch_one(connection, "SELECT pg_relation_size('agent_journal_rest')")
    following = _parse_day(day)
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
        return  # the rest already has entries of that day, the lock timed out, or another process created it
    except psycopg.errors.UniqueViolation:
        return  # another process created it at the same moment


async def _list_partition_days(connection: Connection, before: datetime) -> list[str]:
    """List the days before a time that have a partition."""
    rows = await fetch_all(
        connection,
        "SELECT relname FROM pg_inherits JOIN pg_class ON pg_class.oid = inhrelid"
        " WHERE inhparent = 'agent_journal'::regclass ORDER BY relname",
    )
    last = f"{before.astimezone(UTC):%Y%m%d}"
    named = [_NAME.fullmatch(str(name)) for (name,) in rows]
    return [match[1] for match in named if match is not None and match[1] < last]


async def _is_day_over(connection: Connection, day: str, before: datetime) -> bool:
    """Return True if every run of that day ended before a time and has no parent."""
    row = await fetch_one(
        connection,
        "SELECT 1 FROM agent_runs WHERE run_id >= %s AND run_id < %s AND (updated_at >= %s OR parent_run_id <> ''"
        " OR status NOT IN ('completed', 'failed', 'timeout', 'escalated', 'canceled')) LIMIT 1",
        # `:` follows `9`, so the range contains all ids that start with the day.
        (day, day + ":", before),
    )
    return row is None


async def _drop_partition(connection: Connection, day: str) -> None:
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
        return  # the lock timed out, or another process dropped it; the next deletion tries again


def _parse_day(day: str) -> date | None:
    try:
        return datetime.strptime(day, "%Y%m%d").replace(tzinfo=UTC).date()
    except ValueError:
        return None
