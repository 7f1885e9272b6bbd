"""Connecting to one SQLite file: creating it, its modes and tables, and one change as one transaction."""

import contextlib
import os
import sqlite3
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from metier.dataclass import dataclass
from metier.definitions.files.whole_file import sync_folder
from metier.store.failures import StoreUnavailable
from metier.store.sqlite.errors import build_failure, build_open_failure, is_busy, is_unclear
from metier.store.sqlite.local_disk import check_local_disk
from metier.store.sqlite.schema import migrate

OLDEST_SQLITE = (3, 37, 0)
"""The first with STRICT tables."""
LOG_SIZE = 2 * 1024 * 1024
"""When the write-ahead log is this long, it is copied into the database and begun anew. Half of `ballast.SIZE`, so that
even on a full disk the space given up is enough for that."""
_RETRY_SECONDS = 0.02

type Change[T] = Callable[[sqlite3.Connection], T]


@dataclass(frozen=True, slots=True, kw_only=True)
class Opening:
    """How a file is opened."""

    path: Path
    lock_timeout_seconds: float
    connection_class: type[sqlite3.Connection]


class Connections(NamedTuple):
    quick: sqlite3.Connection
    patient: sqlite3.Connection
    log: int
    """The write-ahead log, for syncing only. SQLite keeps no locks on it that closing it could drop."""


def connect(opening: Opening, *, alone: bool = False) -> Connections:
    """Open the file. `alone` keeps other processes out and needs no shared memory: for a disk without any room left."""
    if sqlite3.sqlite_version_info < OLDEST_SQLITE:
        raise StoreUnavailable(f"SQLite {sqlite3.sqlite_version} is too old", hint="Use SQLite 3.37 or newer")
    with contextlib.ExitStack() as opened:
        try:
            _create_file(opening.path)
            check_local_disk(opening.path.parent)
            patient = opened.enter_context(contextlib.closing(_connect(opening, timeout=opening.lock_timeout_seconds)))
            if alone:
                # Before the first access: the index of the write-ahead log is in memory then, not in a file.
                patient.execute("PRAGMA locking_mode=EXCLUSIVE")
            else:
                # Counts only before the first table is made, and needs room even where it changes nothing.
                patient.execute("PRAGMA auto_vacuum=INCREMENTAL")
            _prepare(patient, opening)
            quick = patient if alone else opened.enter_context(contextlib.closing(_connect(opening, timeout=0)))
            for connection in (patient, quick):
                connection.execute("PRAGMA synchronous=NORMAL")
                connection.execute("PRAGMA wal_autocheckpoint=0")
                connection.execute(f"PRAGMA journal_size_limit={LOG_SIZE}")
                connection.execute("PRAGMA secure_delete=FAST")
            log = os.open(opening.path.with_name(opening.path.name + "-wal"), os.O_RDWR)
        except (sqlite3.Error, UnicodeDecodeError) as error:
            raise build_failure(error, opening.path) from error
        except OSError as error:
            raise build_open_failure(error, opening.path) from error
        opened.pop_all()
    return Connections(quick, patient, log)


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
    for folder in (path.parent, path.parent.parent):
        sync_folder(folder)  # a new file survives a power cut only then; SQLite sees to its own files, not to ours


def _prepare(connection: sqlite3.Connection, opening: Opening) -> None:
    """Write-ahead log, limits, tables. Takes the write lock, so that a folder of no use is refused at the start."""
    _switch_to_wal(connection, opening)
    transact(connection, lambda inside: migrate(inside, opening.path), None)


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


def execute_alone(connection: sqlite3.Connection, statement: Change[bool], landed: Change[bool]) -> bool:
    """A change of one statement, which SQLite makes a transaction by itself; what it returns, or True if it landed."""
    try:
        return statement(connection)
    except sqlite3.Error as error:
        if not is_unclear(error) or not landed(connection):
            raise
        # It is there after all. A checkpoint syncs it, or fails and says so.
        connection.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchall()
        return True


def transact[T](connection: sqlite3.Connection, change: Change[T], landed: Change[bool] | None) -> T:
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
