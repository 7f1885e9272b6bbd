"""One SQLite file, reached without blocking the event loop, and the disk space reserved beside it."""

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
from metier.store.base import make_printable
from metier.store.failures import StoreFull, StoreUnavailable
from metier.store.queries.session import (
    SQLITE,
    Dialect,
    SqlRow,
    SqlValue,
    Work,
    render_time,
    translate_for_sqlite,
)
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

SIZE = 4 * 1024 * 1024
"""Twice the length of the write-ahead log: the log must be copied into the database before its space can be used again.
With 1 MiB that copying takes all of it, and nothing can be deleted."""
ROOM_TO_RESTORE = 4 * SIZE
"""The reserve is made again only when this much is free, so that it never takes the last space of others."""


class Ballast:
    def __init__(self, database: Path) -> None:
        self._path = database.with_name(database.name + ".ballast")

    def is_there(self) -> bool:
        return self._path.exists()

    def release(self) -> None:
        """Free the reserve, so that runs can note that they pause, and old ones can be deleted."""
        self._remove(self._path)

    def restore(self) -> None:
        """Reserve the space again where it is missing and there is room. Never fails: it is a precaution."""
        if self.is_there():
            return
        part = self._path.with_name(f"{self._path.name}.{os.getpid()}")
        try:
            if shutil.disk_usage(self._path.parent).free >= ROOM_TO_RESTORE:
                self._write(part)
                part.replace(self._path)
        except OSError:
            self._remove(part)

    def _write(self, path: Path) -> None:
        descriptor = os.open(path, os.O_CREAT | os.O_WRONLY | os.O_TRUNC, 0o600)
        with os.fdopen(descriptor, "wb") as stream:
            if sys.platform == "linux":
                os.posix_fallocate(descriptor, 0, SIZE)
            else:
                stream.write(os.urandom(SIZE))  # random: file systems that compress would reserve nothing for zeros

    def _remove(self, path: Path) -> None:
        try:
            path.unlink(missing_ok=True)
        except OSError:
            return


_FAST_SYNC_SECONDS = 0.005
"""A disk that syncs within this time is synced on the spot: a thread and back costs 0.1 to 0.5 ms on top."""
_YIELD_SECONDS = 0.004
"""A task that only writes lets others have their turn this often; every time would cost a third of a commit."""
_COMMITS_BETWEEN_LOOKS = 16
"""Asking for the length of the log costs as much as half a commit."""


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
        # Not `fetchone`: a statement that returns changed rows has changed them all only when all were fetched.
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
    """Run queries to their end, here: on the event loop or in a worker thread, inside of a transaction or not.

    They are coroutines because PostgreSQL needs that. With a session that never suspends, the first step is the last.
    """
    running = work(SqliteSession(connection))
    try:
        running.send(None)
    except StopIteration as finished:
        # `StopIteration.value` has no type parameter; it is what `work` returned.
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
        """How many of the commits are known to be on the disk."""
        self._sync_seconds = _FAST_SYNC_SECONDS
        """What the last sync took."""
        self._syncing = anyio.Lock(fast_acquire=True)
        self._turn = anyio.Lock(fast_acquire=True)
        """Held by the one task whose write is under way: tasks queue here, not inside SQLite."""
        self._threads = anyio.CapacityLimiter(4)
        """Our own: a run must be able to write while every shared worker thread waits for a tool."""

    async def read[T](self, work: Work[T]) -> T:
        """Run short queries at once. Only a database that is being recovered makes them wait, in a thread."""
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
        """Run a change in one transaction. A task can be canceled before the commit; after it, the call returns."""
        del repeatable  # a commit is never repeated: its outcome is known, or the disk has failed
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
            if slow or self._commits % _COMMITS_BETWEEN_LOOKS == 0:
                await self._checkpoint_if_due()
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
        """Sync without asking the event loop for anything, where the disk is fast and no other task writes."""
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
        """In a thread, tasks that are about to commit could do so meanwhile, and share the next sync."""
        return self._sync_seconds < _FAST_SYNC_SECONDS and not self._turn.statistics().tasks_waiting

    async def _sync(self, commits: int) -> None:
        """Return when so many commits are on the disk; often the sync of another task has done it."""
        async with self._syncing:
            if self._synced >= commits:
                return
            self._check_open()
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
        """Copy the log into the database and restart it once all of it was copied, which syncs and so is done here."""
        with contextlib.suppress(sqlite3.Error):  # what was written is safe in the log; the next one tries again
            busy, frames, copied = self._patient.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchone()
            if not busy and frames == copied:
                transact(
                    self._patient, lambda inside: inside.execute("UPDATE fencing SET last_token = last_token"), None
                )
        size = os.fstat(self._log).st_size
        self._next_checkpoint = LOG_SIZE if size <= LOG_SIZE else size + LOG_SIZE

    async def in_thread[T](self, work: Callable[[], T]) -> T:
        """Anything that takes long and does not touch the database."""
        return await anyio.to_thread.run_sync(work, limiter=self._threads)

    async def shrink(self) -> None:
        """Give free pages back to the disk, in small steps between which others may write, as far as there is room."""
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


async def open_database(opening: Opening) -> SqliteDatabase:
    """Open or create the file. Raises `StoreUnavailable` or `StoreDamaged` when it cannot serve as a store."""
    connections = await anyio.to_thread.run_sync(partial(_connect_with_reserve, opening))
    database = SqliteDatabase(opening.path, connections)
    await database.in_thread(database.ballast.restore)
    return database


def _connect_with_reserve(opening: Opening) -> Connections:
    """Opening takes room too: on a full disk old runs could not be deleted without giving up the reserve here."""
    try:
        return connect(opening)
    except StoreFull:
        ballast = Ballast(opening.path)
        if not ballast.is_there():
            # Not even room for the shared memory of two processes: runs can still be looked at, and deleted.
            return connect(opening, alone=True)
        ballast.release()
        return connect(opening)


def _sync_file(descriptor: int) -> float:
    """Returns how many seconds it took."""
    started = time.perf_counter()
    if sys.platform == "linux":
        os.fdatasync(descriptor)
    else:
        os.fsync(descriptor)
    return time.perf_counter() - started


def _vacuum_some(connection: sqlite3.Connection) -> int:
    """Free up to 1 MiB at the end of the file; returns how many pages are still free."""
    connection.execute("PRAGMA incremental_vacuum(256)").fetchall()
    return int(connection.execute("PRAGMA freelist_count").fetchone()[0])
