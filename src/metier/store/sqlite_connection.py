"""One SQLite file, reached without ever making the event loop wait.

Two connections: the *quick* one is used on the event loop's thread, gives up at once when another process holds the
lock, and neither syncs nor checkpoints (tens of microseconds). The *patient* one is used in worker threads only: it
waits for locks, syncs and checkpoints (milliseconds). A database belongs to one event loop.
"""

import contextlib
import os
import sqlite3
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import anyio
import anyio.to_thread

from metier.errors import StoreError
from metier.store.ballast import Ballast
from metier.store.failures import StoreFull, StoreUnavailable
from metier.store.local_disk import check_local_disk
from metier.store.sqlite_errors import build_failure, build_open_failure, is_busy, is_unclear
from metier.store.sqlite_schema import migrate

OLDEST_SQLITE = (3, 37, 0)
"""The first with STRICT tables."""
_QUICK_WRITES_BETWEEN_CHECKPOINTS = 200
_RETRY_SECONDS = 0.02

type Change[T] = Callable[[sqlite3.Connection], T]


@dataclass(frozen=True, slots=True, kw_only=True)
class Opening:
    """How a file is opened."""

    path: Path
    lock_timeout_seconds: float
    connection_class: type[sqlite3.Connection]


class Database:
    def __init__(self, opening: Opening, quick: sqlite3.Connection, patient: sqlite3.Connection) -> None:
        self.path = opening.path
        self.ballast = Ballast(opening.path)
        self._quick = quick
        self._patient = patient
        self._is_open = True
        self._quick_writes = 0
        self._turn = anyio.Lock()
        """Held by the one task whose write is under way: tasks queue here, not inside SQLite."""
        self._threads = anyio.CapacityLimiter(4)
        """Our own: a run must be able to write while every shared worker thread waits for a tool."""

    async def read[T](self, query: Change[T]) -> T:
        """Run a short query on the spot. Only a database that is being recovered makes it wait, in a thread."""
        self._check_open()
        try:
            return query(self._quick)
        except sqlite3.Error as error:
            if not is_busy(error):
                raise self._failure(error) from error
        async with self._turn:
            return await self._in_thread(lambda: query(self._patient))

    async def write[T](
        self, change: Change[T], *, durable: bool = False, slow: bool = False, landed: Change[bool] | None = None
    ) -> T:
        """Run a change in one transaction. `landed` finds out, after a commit that failed midway, whether it counts."""
        async with self._turn:
            self._check_open()
            if not (durable or slow or self._quick_writes >= _QUICK_WRITES_BETWEEN_CHECKPOINTS):
                try:
                    result = _transact(self._quick, change, landed)
                except sqlite3.Error as error:
                    if not is_busy(error):
                        raise self._failure(error) from error
                else:
                    self._quick_writes += 1
                    return result
            self._quick_writes = 0
            return await self._in_thread(lambda: self._write_patiently(change, landed, durable=durable))

    async def in_thread[T](self, work: Callable[[], T]) -> T:
        """Anything that takes long and does not touch the database."""
        return await anyio.to_thread.run_sync(work, limiter=self._threads)

    async def shrink(self) -> None:
        """Give free pages back to the disk, in small steps between which others may write."""
        while True:
            async with self._turn:
                self._check_open()
                if await self._in_thread(lambda: _vacuum_some(self._patient)) == 0:
                    return

    async def close(self) -> None:
        with anyio.CancelScope(shield=True):
            async with self._turn:
                if self._is_open:
                    self._is_open = False
                    await self._in_thread(self._close_connections)

    def _close_connections(self) -> None:
        self._quick.close()
        self._patient.close()

    def _check_open(self) -> None:
        if not self._is_open:
            raise StoreUnavailable(f"The run store '{self.path}' is closed", hint="Open it again")

    async def _in_thread[T](self, work: Callable[[], T]) -> T:
        try:
            return await self.in_thread(work)
        except sqlite3.Error as error:
            raise self._failure(error) from error

    def _write_patiently[T](self, change: Change[T], landed: Change[bool] | None, *, durable: bool) -> T:
        self._patient.execute(f"PRAGMA synchronous={'FULL' if durable else 'NORMAL'}")
        return _transact(self._patient, change, landed)

    def _failure(self, error: sqlite3.Error) -> StoreError:
        failure = build_failure(error, self.path)
        if isinstance(failure, StoreFull):
            self.ballast.release()
        return failure


async def open_database(opening: Opening) -> Database:
    """Open or create the file. Raises `StoreUnavailable` or `StoreDamaged` when it cannot serve as a store."""
    quick, patient = await anyio.to_thread.run_sync(partial(_connect_both, opening))
    database = Database(opening, quick, patient)
    await database.in_thread(database.ballast.restore)
    return database


def _connect_both(opening: Opening) -> tuple[sqlite3.Connection, sqlite3.Connection]:
    if sqlite3.sqlite_version_info < OLDEST_SQLITE:
        raise StoreUnavailable(f"SQLite {sqlite3.sqlite_version} is too old", hint="Use SQLite 3.37 or newer")
    try:
        _create_file(opening.path)
    except OSError as error:
        raise build_open_failure(error, opening.path) from error
    check_local_disk(opening.path.parent)
    with contextlib.ExitStack() as opened:
        try:
            patient = _connect(opening, timeout=opening.lock_timeout_seconds)
            opened.callback(patient.close)
            _prepare(patient, opening)
            quick = _connect(opening, timeout=0)
            opened.callback(quick.close)
            quick.execute("PRAGMA synchronous=NORMAL")
            quick.execute("PRAGMA wal_autocheckpoint=0")
        except sqlite3.Error as error:
            raise build_failure(error, opening.path) from error
        opened.pop_all()
    return quick, patient


def _connect(opening: Opening, *, timeout: float) -> sqlite3.Connection:
    return sqlite3.connect(
        opening.path,
        timeout=timeout,
        isolation_level=None,
        check_same_thread=False,  # worker threads take turns; `_turn` lets only one at it
        factory=opening.connection_class,
    )


def _create_file(path: Path) -> None:
    """An empty file that only its owner may read. SQLite gives its helper files the same rights.

    It is linked into place: opening and closing a database file would drop the locks of this process on it.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.exists():
        return
    descriptor, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    os.close(descriptor)
    try:
        os.link(name, path)
    except FileExistsError:
        return
    except OSError:
        path.touch(mode=0o600)  # a file system without links
    finally:
        Path(name).unlink()


def _prepare(connection: sqlite3.Connection, opening: Opening) -> None:
    """Write-ahead log, limits, tables. Takes the write lock, so that a folder of no use is refused at the start."""
    connection.execute("PRAGMA auto_vacuum=INCREMENTAL")  # counts only before the first table is made
    _switch_to_wal(connection, opening)
    connection.execute("PRAGMA wal_autocheckpoint=1000")
    connection.execute("PRAGMA journal_size_limit=16777216")
    connection.execute("PRAGMA secure_delete=FAST")
    _transact(connection, lambda inside: migrate(inside, opening.path), None)


def _switch_to_wal(connection: sqlite3.Connection, opening: Opening) -> None:
    """SQLite does not wait for others here, so we do."""
    deadline = time.monotonic() + opening.lock_timeout_seconds
    while True:
        try:
            mode = str(connection.execute("PRAGMA journal_mode=WAL").fetchone()[0])
        except sqlite3.Error as error:
            if not is_busy(error) or time.monotonic() > deadline:
                raise
            time.sleep(_RETRY_SECONDS)
            continue
        if mode == "wal":
            return
        raise StoreUnavailable(
            f"The run store '{opening.path}' is on a file system without shared memory (journal mode '{mode}')",
            hint="Put the runs folder on a local disk",
        )


def _transact[T](connection: sqlite3.Connection, change: Change[T], landed: Change[bool] | None) -> T:
    connection.execute("BEGIN IMMEDIATE")
    try:
        result = change(connection)
        _commit(connection, landed)
    finally:
        if connection.in_transaction:
            with contextlib.suppress(sqlite3.Error):
                connection.execute("ROLLBACK")
    return result


def _commit(connection: sqlite3.Connection, landed: Change[bool] | None) -> None:
    try:
        connection.execute("COMMIT")
    except sqlite3.Error as error:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        if landed is None or not is_unclear(error) or not landed(connection):
            raise
        # It is there after all. A checkpoint syncs it, or fails and says so.
        connection.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchall()


def _vacuum_some(connection: sqlite3.Connection) -> int:
    """Free up to 4 MiB at the end of the file; returns how many pages are still free."""
    connection.execute("PRAGMA incremental_vacuum(1000)").fetchall()
    return int(connection.execute("PRAGMA freelist_count").fetchone()[0])
