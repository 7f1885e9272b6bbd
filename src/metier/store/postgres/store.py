"""The PostgreSQL store, shared by many machines. See `store.base`; leases use the server's clock."""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Sequence
from datetime import datetime

import anyio
import psycopg

from metier.store.base import Lease, RunRow, StoredEntry
from metier.store.failures import LeaseLost, StoreDamaged
from metier.store.machine import Machine, SystemMachine
from metier.store.postgres import partitions
from metier.store.postgres.database import Address, PoolOptions, PostgresDatabase, connect, decode_text, open_database
from metier.store.postgres.schema import Connection
from metier.store.queries import journal, run_index
from metier.store.queries.session import Session
from metier.store.sql_store import SqlStore

_MAX_UNFLUSHED = 500
"""Maximum number of unflushed entries of a run, about 1 MB. The next append flushes them, which takes milliseconds."""

CHANNEL = "agent_journal"
POLL_SECONDS = (0.05, 1.0)
"""First and longest pause between polls."""
_MARK_SECONDS = 30.0
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
        durable = durable or len(unflushed) >= _MAX_UNFLUSHED
        try:
            await super().append(lease, first_seq, entries, durable=durable)
        except StoreDamaged:
            lost = await self._list_lost(lease, first_seq)
            if not lost:
                raise
            durable = True
            await super().append(lease, lost[0].seq, [*lost, *entries], durable=durable)
        except LeaseLost:
            self._unflushed.pop(lease, None)
            raise
        if durable and entries:
            self._unflushed.pop(lease, None)
        elif entries:
            self._unflushed[lease] = [*unflushed, *entries]

    async def release_lease(self, lease: Lease) -> None:
        await super().release_lease(lease)
        self._unflushed.pop(lease, None)

    async def wait_for_entries(self, run_id: str, *, after: int, seconds: float) -> bool:
        async def has_come() -> bool:
            return bool(await self.read_journal(run_id, after=after, limit=1))

        with anyio.move_on_after(seconds):
            await self._watcher.wait(run_id, has_come)
            return True
        return False

    async def delete_runs(self, run_ids: Sequence[str], *, updated_before: datetime | None = None) -> list[str]:
        keep = await self._list_runs_in_old_days(run_ids, updated_before)
        return await self._server.write(
            lambda db: run_index.delete_runs(db, run_ids, machine=self._machine, keep_journal_of=keep)
        )

    async def reclaim(self, *, updated_before: datetime | None = None) -> None:
        if updated_before is not None:
            days = await self._server.run(lambda connection: partitions.list_days(connection, updated_before))
            for day in days:
                await self._server.run(lambda connection, day=day: partitions.drop_day(connection, day))
        await super().reclaim(updated_before=updated_before)

    async def close(self) -> None:
        with anyio.CancelScope(shield=True):
            await self._watcher.close()
        await super().close()

    async def _add_day(self, run_id: str) -> None:
        day = partitions.get_day(run_id)
        if day and day not in self._days:
            await self._server.run(lambda connection: partitions.add_day(connection, day))
            self._days.add(day)

    async def _list_lost(self, lease: Lease, first_seq: int) -> list[StoredEntry]:
        """Return the entries before `first_seq` that the server lost, if this process has all of them."""
        last = await self._server.read(lambda db: journal.get_last_seq(db, lease.run_id))
        lost = [entry for entry in self._unflushed.get(lease, ()) if entry.seq > last]
        return lost if [entry.seq for entry in lost] == list(range(last + 1, first_seq)) else []

    async def _list_runs_in_old_days(self, run_ids: Sequence[str], before: datetime | None) -> frozenset[str]:
        """List the runs whose entries need not be deleted because the partitions of their days can be dropped."""
        if before is None:
            return frozenset()
        days = {run_id: partitions.get_day(run_id) for run_id in run_ids}

        async def query(connection: Connection) -> frozenset[str]:
            old = set(days.values()).intersection(await partitions.list_days(connection, before))
            over = {day for day in old if await partitions.is_over(connection, day, before)}
            return frozenset(run_id for run_id, day in days.items() if day in over)

        return await self._server.run(query)


class Watcher:
    def __init__(self, database: PostgresDatabase, *, poll_seconds: tuple[float, float] = POLL_SECONDS) -> None:
        self._database = database
        self._poll_seconds = poll_seconds
        self._waiting: dict[str, set[anyio.Event]] = {}
        self._listener: asyncio.Task[None] | None = None

    async def wait(self, run_id: str, has_come: Callable[[], Awaitable[bool]]) -> None:
        """Wait until `has_come` returns true. The caller bounds the wait by canceling it."""
        if self._listener is None or self._listener.done():
            self._listener = asyncio.create_task(self._listen(), name="listen for journal entries")
        pause, marked_at = self._poll_seconds[0], -_MARK_SECONDS
        while True:
            notice = anyio.Event()
            self._waiting.setdefault(run_id, set()).add(notice)
            try:
                if anyio.current_time() - marked_at > _MARK_SECONDS / 2:
                    await self._mark(run_id)
                    marked_at = anyio.current_time()
                if await has_come():
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
            with contextlib.suppress(psycopg.Error):
                async with await connect(self._database.address) as connection:
                    await connection.execute(f"LISTEN {CHANNEL}")
                    # Closed explicitly: if the server went away, only the garbage collector would close the generator.
                    async with contextlib.aclosing(connection.notifies()) as notifications:
                        async for notification in notifications:
                            for notice in self._waiting.get(decode_text(notification.payload), ()):
                                notice.set()
            await asyncio.sleep(_RECONNECT_SECONDS)
