"""The store for many machines: one PostgreSQL database. Its promises: `store.base`. Leases use the server's clock."""

from collections.abc import Sequence
from datetime import datetime

import anyio

from metier.store.base import Lease, RunRow, StoredEntry
from metier.store.failures import LeaseLost, StoreDamaged
from metier.store.machine import Machine, SystemMachine
from metier.store.postgres import partitions
from metier.store.postgres.database import Address, PoolOptions, PostgresDatabase, open_database
from metier.store.postgres.listener import Watcher
from metier.store.postgres.schema import Connection
from metier.store.queries import journal, run_index
from metier.store.sql_store import SqlStore

_MAX_UNFLUSHED = 500
"""Entries of a run that are held in memory, about 1 MB. The next append flushes them, which takes milliseconds."""


async def open_postgres_store(
    address: Address,
    *,
    machine: Machine | None = None,
    pool: PoolOptions | None = None,
    blob_grace_seconds: float = 3600.0,
) -> "PostgresStore":
    """Connect and bring the tables up to date. Raises `StoreUnavailable` when the server cannot serve.

    A store belongs to the event loop that opened it.
    """
    database = await open_database(address, pool or PoolOptions())
    return PostgresStore(database, machine=machine or SystemMachine(), blob_grace_seconds=blob_grace_seconds)


class PostgresStore(SqlStore):
    """`store.base.Store` on PostgreSQL. Made by `open_postgres_store`."""

    def __init__(self, database: PostgresDatabase, *, machine: Machine, blob_grace_seconds: float) -> None:
        super().__init__(database, machine=machine, blob_grace_seconds=blob_grace_seconds)
        self._server = database
        self._watcher = Watcher(database)
        self._days: set[str] = set()
        """Days whose journal has a table, or cannot have one."""
        self._unflushed: dict[Lease, list[StoredEntry]] = {}
        """Entries that a crash of the server may lose."""

    async def create_run(self, row: RunRow, entries: Sequence[StoredEntry] = ()) -> None:
        await self._add_day(row.run_id)
        await super().create_run(row, entries)

    async def begin_run(self, row: RunRow, entries: Sequence[StoredEntry], *, owner: str, seconds: float) -> Lease:
        await self._add_day(row.run_id)
        return await super().begin_run(row, entries, owner=owner, seconds=seconds)

    async def append(
        self, lease: Lease, first_seq: int, entries: Sequence[StoredEntry], *, durable: bool = True
    ) -> None:
        """An append that need not be durable does not wait for the server's disk.

        The commits of one database reach the disk in order, so a durable append makes all earlier ones durable. The
        driver outlives a crash of the server: it still has the entries that went with it, and writes them again.
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
        kept = await self._list_runs_in_old_days(run_ids, updated_before)
        return await self._server.write(
            lambda db: run_index.delete_runs(db, run_ids, machine=self._machine, keep_journal_of=kept)
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
        """Return the runs whose entries need not be deleted: the tables of their days can be dropped afterwards."""
        if before is None:
            return frozenset()
        days = {run_id: partitions.get_day(run_id) for run_id in run_ids}

        async def query(connection: Connection) -> frozenset[str]:
            old = set(days.values()).intersection(await partitions.list_days(connection, before))
            over = {day for day in old if await partitions.is_over(connection, day, before)}
            return frozenset(run_id for run_id, day in days.items() if day in over)

        return await self._server.run(query)
