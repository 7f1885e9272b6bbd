"""The embedded store: one SQLite file for all processes of one machine. See `store.base`.

Transactions are so short that they run in the event loop; only slow work runs in threads. A file reserves disk space.
"""

import contextlib
import json
import os
import shutil
import sqlite3
import sys
import time
from collections.abc import Callable, Sequence
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import cast

import anyio
import anyio.to_thread
from anyio.lowlevel import checkpoint

from metier.errors import StoreError
from metier.ids import Clock, SystemClock
from metier.store.base import Lease, make_printable
from metier.store.failures import StoreFull, StoreUnavailable
from metier.store.machine import Machine, SystemMachine
from metier.store.queries.session import (
    SQLITE,
    Dialect,
    SqlRow,
    SqlValue,
    Work,
    render_time,
    translate_for_sqlite,
)
from metier.store.sql_store import SqlStore
from metier.store.sqlite.connection import (
    LOG_SIZE,
    Change,
    Connections,
    Opening,
    build_failure,
    build_sync_failure,
    connect,
    is_busy,
    transact,
)

_BALLAST_BYTES = 4 * 1024 * 1024
"""Twice the length of the write-ahead log, which must be copied into the database before its space can be reused. With
1 MiB, copying would need the whole reserve, and nothing could be deleted."""
MIN_FREE_BYTES = 4 * _BALLAST_BYTES
"""Free space needed to restore the reserve, so that it never takes the last space on a disk."""


class Ballast:
    """A file that reserves disk space. It is deleted if the disk is full, so that the store can still be used."""

    def __init__(self, database: Path) -> None:
        self._path = database.with_name(database.name + ".ballast")

    def exists(self) -> bool:
        return self._path.exists()

    def release(self) -> None:
        """Free the reserve, so that runs can record their pause and old runs can be deleted."""
        self._remove(self._path)

    def restore(self) -> None:
        """Reserve the space again if possible. It never fails because the reserve is only a precaution."""
        if self.exists():
            return
        # A name of its own, because several processes may open the store at the same time.
        part = self._path.with_name(f"{self._path.name}.{os.getpid()}")
        try:
            if shutil.disk_usage(self._path.parent).free >= MIN_FREE_BYTES:
                self._write(part)
                part.replace(self._path)
        except OSError:
            self._remove(part)

    def _write(self, path: Path) -> None:
        descriptor = os.open(path, os.O_CREAT | os.O_WRONLY | os.O_TRUNC, 0o600)
        with os.fdopen(descriptor, "wb") as stream:
            if sys.platform == "linux":
                # Not `truncate`, which would create a sparse file that reserves nothing.
                os.posix_fallocate(descriptor, 0, _BALLAST_BYTES)
            else:
                # Random, because compressing file systems allocate nothing for zeros.
                stream.write(os.urandom(_BALLAST_BYTES))

    def _remove(self, path: Path) -> None:
        try:
            path.unlink(missing_ok=True)
        except OSError:
            return


_FAST_SYNC_SECONDS = 0.005
"""A disk that syncs faster than this is synced in the event loop: switching to a thread adds 0.1 to 0.5 ms."""
_YIELD_SECONDS = 0.004
"""Interval at which a writing task yields to others; yielding every time would cost a third of a commit."""
_COMMITS_BETWEEN_CHECKS = 16
"""Reading the length of the log costs half as much as a commit."""


class SqliteSession:
    """`store.queries.session.Session` on a connection. Its methods never suspend: see `_complete`."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection

    @property
    def dialect(self) -> Dialect:
        return SQLITE

    async def execute(self, statement: str, values: Sequence[SqlValue] = ()) -> int:
        return self._connection.execute(translate_for_sqlite(statement), _encode(values)).rowcount

    async def fetch_one(self, query: str, values: Sequence[SqlValue] = ()) -> SqlRow | None:
        # Not `fetchone`: an UPDATE … RETURNING only has changed all rows when all of them are fetched.
        rows = await self.fetch_all(query, values)
        return rows[0] if rows else None

    async def fetch_all(self, query: str, values: Sequence[SqlValue] = ()) -> list[SqlRow]:
        return self._connection.execute(translate_for_sqlite(query), _encode(values)).fetchall()


def _encode(values: Sequence[SqlValue]) -> list[str | int | float | bytes | None]:
    return [_encode_value(value) for value in values]


def _encode_value(value: SqlValue) -> str | int | float | bytes | None:
    match value:
        case str():
            return value if value.isascii() else make_printable(value)
        case int() | float() | bytes() | None:
            return value
        case datetime():
            return render_time(value)
        case _:
            return json.dumps([make_printable(each) for each in value])


def _complete[T](work: Work[T], connection: sqlite3.Connection) -> T:
    """Run a coroutine of queries synchronously, in the event loop or in a worker thread.

    Queries are coroutines because PostgreSQL needs that. As this session never suspends, one step completes them.
    """
    running = work(SqliteSession(connection))
    try:
        running.send(None)
    except StopIteration as finished:
        # `StopIteration.value` is untyped; it is the return value of `work`.
        return cast(T, finished.value)
    running.close()
    raise RuntimeError("A query waited for something other than its session")


class SqliteDatabase:
    """`store.queries.session.Database` on one file."""

    def __init__(self, path: Path, connections: Connections) -> None:
        self.path = path
        self.ballast = Ballast(path)
        self._quick, self._patient, self._log = connections
        self._is_open = True
        self._next_checkpoint = LOG_SIZE
        self._yielded_at = 0.0
        self._commits = 0
        self._synced = 0
        """Number of commits known to be on the disk."""
        self._sync_seconds = _FAST_SYNC_SECONDS
        """Duration of the last sync."""
        self._syncing = anyio.Lock(fast_acquire=True)
        self._turn = anyio.Lock(fast_acquire=True)
        """Held by the task that writes: tasks queue here instead of polling for SQLite's lock."""
        self._threads = anyio.CapacityLimiter(4)
        """Separate from anyio's threads: a run must be able to write while all of those wait for tools."""

    async def read[T](self, work: Work[T]) -> T:
        """Run short queries in the event loop. They only have to wait, in a thread, while the database recovers."""
        self._check_open()
        try:
            return _complete(work, self._quick)
        except (sqlite3.Error, UnicodeDecodeError) as error:
            if not is_busy(error):
                raise self._failure(error) from error
        async with self._turn:
            return await self._in_thread(lambda: _complete(work, self._patient))

    async def write[T](
        self, work: Work[T], *, durable: bool = False, slow: bool = False, repeatable: bool = False
    ) -> T:
        """Run a change in one transaction. It can be canceled before the commit, but not after it."""
        del repeatable  # a commit is never repeated, because its outcome is known unless the disk has failed
        return await self._write(partial(_transact, work, None), durable=durable, slow=slow)

    async def append(self, work: Work[None], has_landed: Work[bool], *, durable: bool) -> None:
        await self._write(partial(_transact, work, has_landed), durable=durable)

    async def _write[T](self, work: Change[T], *, durable: bool, slow: bool = False) -> T:
        if time.perf_counter() - self._yielded_at > _YIELD_SECONDS:
            await checkpoint()
            self._yielded_at = time.perf_counter()
        async with self._turn:
            self._check_open()
            result = await self._commit(work, slow=slow)
            self._commits += 1
            if slow or self._commits % _COMMITS_BETWEEN_CHECKS == 0:
                await self._checkpoint_if_due()
        # Synced after the turn, so that the next task can commit meanwhile. A canceled caller must not believe that its
        # commit failed, so the sync is shielded.
        if durable and not self._sync_at_once():
            with anyio.CancelScope(shield=True):
                await self._sync(self._commits)
        return result

    async def _commit[T](self, work: Change[T], *, slow: bool) -> T:
        if not slow:
            try:
                return work(self._quick)
            except (sqlite3.Error, UnicodeDecodeError) as error:
                if not is_busy(error):
                    raise self._failure(error) from error
        return await self._in_thread(lambda: work(self._patient))

    def _sync_at_once(self) -> bool:
        """Sync in the event loop if the disk is fast and no other task is writing. Return False otherwise."""
        if not self._is_free_to_sync() or self._syncing.locked():
            return False
        self._check_open()
        try:
            self._sync_seconds = _sync_file(self._log)
        except OSError as error:
            raise build_sync_failure(error, self.path) from error
        self._synced = self._commits
        return True

    def _is_free_to_sync(self) -> bool:
        # If the sync runs in a thread instead, waiting tasks can commit meanwhile and share the next sync.
        return self._sync_seconds < _FAST_SYNC_SECONDS and not self._turn.statistics().tasks_waiting

    async def _sync(self, commits: int) -> None:
        """Return when this number of commits is on the disk. Usually another task's sync has already covered them."""
        async with self._syncing:
            if self._synced >= commits:
                return
            self._check_open()
            # Read before the sync: it only covers the commits up to its start.
            reached = self._commits
            try:
                if self._is_free_to_sync():
                    self._sync_seconds = _sync_file(self._log)
                else:
                    self._sync_seconds = await self.in_thread(lambda: _sync_file(self._log))
            except OSError as error:
                raise build_sync_failure(error, self.path) from error
            self._synced = reached

    async def _checkpoint_if_due(self) -> None:
        if os.fstat(self._log).st_size > self._next_checkpoint:
            with anyio.CancelScope(shield=True):
                await self._in_thread(self._checkpoint)

    def _checkpoint(self) -> None:
        """Copy the log into the database and, if that is complete, restart it. Both sync, so this runs in a thread."""
        with contextlib.suppress(sqlite3.Error):  # the log still has everything, and the next checkpoint tries again
            # Passive: the other modes wait for readers and block all writers meanwhile.
            busy, frames, copied = self._patient.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchone()
            if not busy and frames == copied:
                # SQLite restarts a log that is fully copied with the next write, so this writes something.
                transact(
                    self._patient, lambda inside: inside.execute("UPDATE fencing SET last_token = last_token"), None
                )
        size = os.fstat(self._log).st_size
        # A reader prevented the restart. It is tried again only after more has been written, not with every commit.
        self._next_checkpoint = LOG_SIZE if size <= LOG_SIZE else size + LOG_SIZE

    async def in_thread[T](self, work: Callable[[], T]) -> T:
        """Run long work that doesn't use the database."""
        return await anyio.to_thread.run_sync(work, limiter=self._threads)

    async def shrink(self) -> None:
        """Return free pages to the file system, in small steps between which other tasks can write."""
        is_done = False
        while not is_done:
            async with self._turn:
                self._check_open()
                try:
                    is_done = await self._in_thread(lambda: _vacuum_some(self._patient)) == 0
                except StoreFull:
                    return
                await self._checkpoint_if_due()

    async def close(self) -> None:
        with anyio.CancelScope(shield=True):
            async with self._turn, self._syncing:
                if self._is_open:
                    self._is_open = False
                    await self._in_thread(self._close_connections)

    def _close_connections(self) -> None:
        os.close(self._log)
        self._quick.close()
        self._patient.close()

    def _check_open(self) -> None:
        if not self._is_open:
            raise StoreUnavailable(f"The run store '{self.path}' is closed", hint="Open it again")

    async def _in_thread[T](self, work: Callable[[], T]) -> T:
        try:
            return await self.in_thread(work)
        except (sqlite3.Error, UnicodeDecodeError) as error:
            raise self._failure(error) from error

    def _failure(self, error: sqlite3.Error | UnicodeDecodeError) -> StoreError:
        failure = build_failure(error, self.path)
        if isinstance(failure, StoreFull):
            self.ballast.release()
        return failure


def _transact[T](work: Work[T], has_landed: Work[bool] | None, connection: sqlite3.Connection) -> T:
    landed = None if has_landed is None else partial(_complete, has_landed)
    return transact(connection, partial(_complete, work), landed)


def _connect_with_reserve(opening: Opening) -> Connections:
    """Connect, freeing the reserve if the disk is full: opening the store needs space, even to delete old runs."""
    try:
        return connect(opening)
    except StoreFull:
        ballast = Ballast(opening.path)
        if not ballast.exists():
            # No space for shared memory: a single process can still read and delete runs.
            return connect(opening, alone=True)
        ballast.release()
        return connect(opening)


def _sync_file(descriptor: int) -> float:
    """Sync a file and return the duration in seconds."""
    started = time.perf_counter()
    if sys.platform == "linux":
        # Cheaper than `fsync`: it skips metadata such as the modification time, but not the size.
        os.fdatasync(descriptor)
    else:
        os.fsync(descriptor)
    return time.perf_counter() - started


def _vacuum_some(connection: sqlite3.Connection) -> int:
    """Free up to 1 MiB at the end of the file and return the number of free pages left."""
    connection.execute("PRAGMA incremental_vacuum(256)").fetchall()
    return int(connection.execute("PRAGMA freelist_count").fetchone()[0])


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
    connections = await anyio.to_thread.run_sync(partial(_connect_with_reserve, opening))
    database = SqliteDatabase(path, connections)
    await database.in_thread(database.ballast.restore)
    return SqliteStore(database, machine=machine, blob_grace_seconds=blob_grace_seconds)


class SqliteStore(SqlStore):
    """`store.base.Store` on SQLite, opened by `open_sqlite_store`."""

    def __init__(self, database: SqliteDatabase, *, machine: Machine, blob_grace_seconds: float) -> None:
        super().__init__(database, machine=machine, blob_grace_seconds=blob_grace_seconds)
        self._file = database

    async def take_lease(self, run_id: str, *, owner: str, seconds: float) -> Lease:
        lease = await super().take_lease(run_id, owner=owner, seconds=seconds)
        # The reserve may have been freed when the disk was full.
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
