"""A connection to one SQLite file: its creation, modes, tables and transactions.

SQLite's exceptions become those of `store.failures`; nothing outside this package sees a `sqlite3` error.
"""

import contextlib
import os
import re
import shutil
import sqlite3
import tempfile
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import NamedTuple

from msgspec import Struct

from metier.definitions.files.whole_file import sync_folder
from metier.errors import StoreError
from metier.ids import Clock
from metier.store.failures import StoreDamaged, StoreFull, StoreUnavailable
from metier.store.machine import Machine
from metier.store.queries.session import render_time
from metier.store.sqlite.schema import migrate


class _Meaning(NamedTuple):
    kind: type[StoreError]
    fact: str
    hint: str


_SPACE = "Free some space, for example with `agent runs gc`, then resume the run"
_RIGHTS = "Check that you may write to this folder"
_BACKUP = "Restore the file from a backup, or move it away; runs recorded in it cannot be resumed"
_DISK = "Check the disk, its quota and the system log; what was acknowledged before is still there"
_REPORT = "Try again; if it happens again, report it with this message"

FULL = _Meaning(StoreFull, "has no room to grow: the disk is full", _SPACE)
_READ_ONLY = _Meaning(StoreUnavailable, "cannot be written", _RIGHTS)
_DAMAGED = _Meaning(StoreDamaged, "is damaged", _BACKUP)
_LOCKED = _Meaning(StoreUnavailable, "is locked by another process", "End the program that holds it, then try again")
_BROKEN_DISK = _Meaning(StoreUnavailable, "cannot be read or written: the disk reports an error", _DISK)
_UNUSABLE = _Meaning(StoreUnavailable, "cannot be used", _REPORT)

_BY_CODE = {
    sqlite3.SQLITE_FULL: FULL,
    sqlite3.SQLITE_CORRUPT: _DAMAGED,
    sqlite3.SQLITE_NOTADB: _Meaning(StoreDamaged, "is not a database", _BACKUP),
    sqlite3.SQLITE_IOERR_CORRUPTFS: _DAMAGED,
    sqlite3.SQLITE_CONSTRAINT: _Meaning(StoreDamaged, "contradicts itself", _BACKUP),
    sqlite3.SQLITE_BUSY: _LOCKED,
    sqlite3.SQLITE_LOCKED: _LOCKED,
    sqlite3.SQLITE_READONLY: _READ_ONLY,
    sqlite3.SQLITE_PERM: _READ_ONLY,
    sqlite3.SQLITE_AUTH: _READ_ONLY,
    sqlite3.SQLITE_CANTOPEN: _Meaning(StoreUnavailable, "cannot be opened", _RIGHTS),
    sqlite3.SQLITE_IOERR: _BROKEN_DISK,
    sqlite3.SQLITE_NOMEM: _Meaning(StoreUnavailable, "cannot be used: there is no memory left", "Free some memory"),
    sqlite3.SQLITE_TOOBIG: _Meaning(
        StoreUnavailable, "cannot take a value of this size", "Keep values below one gigabyte"
    ),
}
"""Extended codes first, then the primary code (the low byte); everything else cannot be used."""

_LITTLE_ROOM = 64 * 1024


def is_busy(error: sqlite3.Error | UnicodeDecodeError) -> bool:
    return _code(error) & 0xFF in {sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED}


def is_unclear(error: sqlite3.Error) -> bool:
    """The disk failed: what was being committed may or may not be there."""
    return _code(error) & 0xFF == sqlite3.SQLITE_IOERR


def build_failure(error: sqlite3.Error | UnicodeDecodeError, database: Path) -> StoreError:
    """A text that cannot be decoded, of a row or of SQLite's own complaint, was damaged too."""
    meaning = _get_meaning(error, database)
    name = getattr(error, "sqlite_errorname", "") or type(error).__name__
    return meaning.kind(f"The run store '{database}' {meaning.fact} ({name}: {error})", hint=meaning.hint)


def build_open_failure(error: OSError, database: Path) -> StoreError:
    """A folder that cannot be made, a file that cannot be created."""
    full = error.errno in {28, 122}  # ENOSPC and EDQUOT
    meaning = FULL if full else _Meaning(StoreUnavailable, "cannot be opened", _RIGHTS)
    return meaning.kind(
        f"The run store '{database}' {meaning.fact} ({os.strerror(error.errno or 0)})", hint=meaning.hint
    )


def build_sync_failure(error: OSError, database: Path) -> StoreError:
    reason = os.strerror(error.errno or 0)
    return StoreUnavailable(
        f"The run store '{database}' could not be synced, so the last entries may not survive a power cut ({reason})",
        hint=_DISK,
    )


def _get_meaning(error: sqlite3.Error | UnicodeDecodeError, database: Path) -> _Meaning:
    # Text in a row that is none: Python's own complaint, which carries no code.
    if isinstance(error, UnicodeDecodeError) or str(error).startswith("Could not decode to UTF-8"):
        return _DAMAGED
    code = _code(error)
    meaning = _BY_CODE.get(code) or _BY_CODE.get(code & 0xFF) or _UNUSABLE
    # Shared memory that cannot grow, and a quota that is used up, are reported as plain I/O errors.
    return FULL if meaning is _BROKEN_DISK and _has_no_room(database) else meaning


def _code(error: sqlite3.Error | UnicodeDecodeError) -> int:
    """Errors of the Python module itself carry no code."""
    code: object = getattr(error, "sqlite_errorcode", None)
    return code if isinstance(code, int) else sqlite3.SQLITE_ERROR


def _has_no_room(database: Path) -> bool:
    try:
        return shutil.disk_usage(database.parent).free < _LITTLE_ROOM
    except OSError:
        return False


NETWORK_FILE_SYSTEMS = frozenset(
    (
        "nfs",
        "nfs4",
        "cifs",
        "smb3",
        "smbfs",
        "ncpfs",
        "afs",
        "ceph",
        "gfs2",
        "glusterfs",
        "lustre",
        "beegfs",
        "gpfs",
        "ocfs2",
        "fuse.sshfs",
        "fuse.glusterfs",
        "fuse.ceph",
        "fuse.s3fs",
        "fuse.rclone",
        "fuse.gcsfuse",
        "davfs",
        "fuse.davfs2",
    )
)
MOUNTS = Path("/proc/self/mountinfo")


def check_local_disk(folder: Path, *, mounts: Path = MOUNTS) -> None:
    """Raises `StoreUnavailable` for a network file system. Where there is no list of mounts nothing is known."""
    try:
        text = mounts.read_text(encoding="utf-8", errors="surrogateescape")
    except OSError:
        return
    kind = get_file_system(os.path.realpath(folder), text)
    if kind in NETWORK_FILE_SYSTEMS:
        raise StoreUnavailable(
            f"The folder '{folder}' is on a network file system ({kind}), where SQLite loses data",
            hint="Put the runs folder on a local disk, or use a PostgreSQL server with `store.backend: postgres`",
        )


def get_file_system(folder: str, mountinfo: str) -> str:
    """The type of the file system that holds an absolute path: the longest mount above it, the last of equals."""
    best, kind = "", ""
    for line in mountinfo.splitlines():
        before, separator, after = line.partition(" - ")
        fields = before.split(" ")
        if not separator or len(fields) < 5:
            continue
        point = _unescape(fields[4])
        if len(point) >= len(best) and (folder == point or folder.startswith(point.rstrip("/") + "/")):
            best, kind = point, after.split(" ")[0]
    return kind


def _unescape(text: str) -> str:
    """The kernel writes blanks, tabs, newlines and backslashes of a path as three octal digits."""
    return re.sub(r"\\([0-7]{3})", lambda match: chr(int(match[1], 8)), text)


OLDEST_SQLITE = (3, 37, 0)
"""The first with STRICT tables."""
LOG_SIZE = 2 * 1024 * 1024
"""The length at which the write-ahead log is copied into the database and restarted. Half of `ballast.SIZE`, so that
even on a full disk the space given up is enough for that."""
_RETRY_SECONDS = 0.02

type Change[T] = Callable[[sqlite3.Connection], T]


class Opening(Struct, frozen=True, kw_only=True):
    """How a file is opened."""

    path: Path
    lock_timeout_seconds: float
    connection_class: type[sqlite3.Connection]
    clock: Clock
    machine: Machine


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
                _add_functions(connection, opening.clock, opening.machine)
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


def _add_functions(connection: sqlite3.Connection, clock: Clock, machine: Machine) -> None:
    """Add the clocks and the rules of leases that `store.queries.session.SQLITE` names."""

    def time_from_now(seconds: float | None) -> str | None:
        return None if seconds is None else render_time(clock.now() + timedelta(seconds=seconds))

    def lease_seconds_left(boot_id: str | None, until: float | None) -> float:
        # The uptime of another boot says nothing, and no process of it is alive.
        return 0.0 if until is None or boot_id != machine.boot_id() else until - machine.uptime()

    def unix_time_from_now(seconds: float) -> float:
        return clock.now().timestamp() + seconds

    def uptime_from_now(seconds: float) -> float:
        return machine.uptime() + seconds

    def lease_is_over(owner: str, boot_id: str, until: float, process: str) -> bool:  # noqa: PLR0917 (called by SQLite)
        return not owner or lease_seconds_left(boot_id, until) <= 0 or machine.is_gone(process)

    connection.create_function("time_from_now", 1, time_from_now)
    connection.create_function("unix_time_from_now", 1, unix_time_from_now)
    connection.create_function("uptime_from_now", 1, uptime_from_now)
    connection.create_function("lease_seconds_left", 2, lease_seconds_left)
    connection.create_function("lease_is_over", 4, lease_is_over)


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
