"""The embedded store: one SQLite file for all processes of one machine. See `store.base`."""

import sqlite3
from datetime import datetime
from pathlib import Path

import anyio

from metier.ids import Clock, SystemClock
from metier.store.base import Lease
from metier.store.machine import Machine, SystemMachine
from metier.store.sql_store import SqlStore
from metier.store.sqlite.connection import Opening
from metier.store.sqlite.database import SqliteDatabase, open_database

_POLL_SECONDS = 0.02
"""Interval of polling for new entries: SQLite does not notify other processes."""


async def open_sqlite_store(
    path: Path,
    *,
    clock: Clock | None = None,
    machine: Machine | None = None,
    lock_timeout_seconds: float = 10.0,
    blob_grace_seconds: float = 3600.0,
    connection_class: type[sqlite3.Connection] = sqlite3.Connection,
) -> "SqliteStore":
    """Open or create the file. Raises `StoreUnavailable`, `StoreDamaged` or `StoreFull`.

    A write waits up to `lock_timeout_seconds` for other processes. The store is bound to the current event loop.
    """
    machine = machine or SystemMachine()
    opening = Opening(
        path=path,
        lock_timeout_seconds=lock_timeout_seconds,
        connection_class=connection_class,
        clock=clock or SystemClock(),
        machine=machine,
    )
    database = await open_database(opening)
    return SqliteStore(database, machine=machine, blob_grace_seconds=blob_grace_seconds)


class SqliteStore(SqlStore):
    """`store.base.Store` on SQLite, opened by `open_sqlite_store`."""

    def __init__(self, database: SqliteDatabase, *, machine: Machine, blob_grace_seconds: float) -> None:
        super().__init__(database, machine=machine, blob_grace_seconds=blob_grace_seconds)
        self._file = database

    async def take_lease(self, run_id: str, *, owner: str, seconds: float) -> Lease:
        lease = await super().take_lease(run_id, owner=owner, seconds=seconds)
        if not self._file.ballast.exists():
            await self._file.in_thread(self._file.ballast.restore)
        return lease

    async def wait_for_entries(self, run_id: str, *, after: int, seconds: float) -> bool:
        with anyio.move_on_after(seconds):
            while not await self.read_journal(run_id, after=after, limit=1):  # noqa: ASYNC110 (no event to wait for)
                await anyio.sleep(_POLL_SECONDS)
            return True
        return False

    async def reclaim(self, *, updated_before: datetime | None = None) -> None:
        await super().reclaim(updated_before=updated_before)
        await self._file.shrink()
        await self._file.in_thread(self._file.ballast.restore)
