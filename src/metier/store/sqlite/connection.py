"""Connections to one SQLite file: creation, modes, tables and transactions.

Exceptions of `sqlite3` are converted to those of `store.failures`.
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


class _Explanation(NamedTuple):
    kind: type[StoreError]
    fact: str
    hint: str


_SPACE = "Free some space, for example with `agent runs gc`, then resume the run"
_RIGHTS = "Check that you can write to this folder"
_BACKUP = "Restore the file from a backup, or move it away; the runs in it cannot be resumed"
_DISK = "Check the disk, its quota and the system log; acknowledged changes are safe"
_REPORT = "Try again; if it happens again, report it with this message"

FULL = _Explanation(StoreFull, "cannot grow: the disk is full", _SPACE)
_READ_ONLY = _Explanation(StoreUnavailable, "cannot be written", _RIGHTS)
_DAMAGED = _Explanation(StoreDamaged, "is damaged", _BACKUP)
_LOCKED = _Explanation(StoreUnavailable, "is locked by another process", "Stop that process, then try again")
_BROKEN_DISK = _Explanation(StoreUnavailable, "cannot be read or written: the disk reports an error", _DISK)
_UNUSABLE = _Explanation(StoreUnavailable, "cannot be used", _REPORT)

_BY_CODE = {
    sqlite3.SQLITE_FULL: FULL,
    sqlite3.SQLITE_CORRUPT: _DAMAGED,
    sqlite3.SQLITE_NOTADB: _Explanation(StoreDamaged, "is not a database", _BACKUP),
    sqlite3.SQLITE_IOERR_CORRUPTFS: _DAMAGED,
    sqlite3.SQLITE_CONSTRAINT: _Explanation(StoreDamaged, "contradicts itself", _BACKUP),
    sqlite3.SQLITE_BUSY: _LOCKED,
    sqlite3.SQLITE_LOCKED: _LOCKED,
    sqlite3.SQLITE_READONLY: _READ_ONLY,
    sqlite3.SQLITE_PERM: _READ_ONLY,
    sqlite3.SQLITE_AUTH: _READ_ONLY,
    sqlite3.SQLITE_CANTOPEN: _Explanation(StoreUnavailable, "cannot be opened", _RIGHTS),
    sqlite3.SQLITE_IOERR: _BROKEN_DISK,
    sqlite3.SQLITE_NOMEM: _Explanation(StoreUnavailable, "cannot be used: out of memory", "Free some memory"),
    sqlite3.SQLITE_TOOBIG: _Explanation(
        StoreUnavailable, "cannot store a value of this size", "Keep values below one gigabyte"
    ),
}
"""By extended code, or by primary code (the low byte)."""

_MIN_FREE_BYTES = 64 * 1024
"""With less free space, the disk counts as full. A full disk may still have a few free blocks."""


def is_busy(error: sqlite3.Error | UnicodeDecodeError) -> bool:
    return _code(error) & 0xFF in {sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED}


def is_unclear(error: sqlite3.Error) -> bool:
    """Return True if the disk failed, so that the last commit has an unknown outcome."""
    return _code(error) & 0xFF == sqlite3.SQLITE_IOERR


def build_failure(error: sqlite3.Error | UnicodeDecodeError, database: Path) -> StoreError:
    explained = _explain(error, database)
    name = getattr(error, "sqlite_errorname", "") or type(error).__name__
    return explained.kind(f"The run store '{database}' {explained.fact} ({name}: {error})", hint=explained.hint)


def build_open_failure(error: OSError, database: Path) -> StoreError:
    """Build the error for a folder or file that cannot be created."""
    full = error.errno in {28, 122}  # ENOSPC and EDQUOT
    explained = FULL if full else _Explanation(StoreUnavailable, "cannot be opened", _RIGHTS)
    return explained.kind(
        f"The run store '{database}' {explained.fact} ({os.strerror(error.errno or 0)})", hint=explained.hint
    )


def build_sync_failure(error: OSError, database: Path) -> StoreError:
    reason = os.strerror(error.errno or 0)
    return StoreUnavailable(
        f"The run store '{database}' could not be synced, so the last entries may not survive a power cut ({reason})",
        hint=_DISK,
    )


def _explain(error: sqlite3.Error | UnicodeDecodeError, database: Path) -> _Explanation:
    # A row with invalid text is damaged. Python reports this without a code.
    if isinstance(error, UnicodeDecodeError) or str(error).startswith("Could not decode to UTF-8"):
        return _DAMAGED
    code = _code(error)
    explained = _BY_CODE.get(code) or _BY_CODE.get(code & 0xFF) or _UNUSABLE
    # SQLite reports an exhausted quota, and shared memory that cannot grow, as plain I/O errors.
    return FULL if explained is _BROKEN_DISK and _is_disk_full(database) else explained


def _code(error: sqlite3.Error | UnicodeDecodeError) -> int:
    # Errors raised by the Python module itself have no code.
    code: object = getattr(error, "sqlite_errorcode", None)
    return code if isinstance(code, int) else sqlite3.SQLITE_ERROR


def _is_disk_full(database: Path) -> bool:
    try:
        return shutil.disk_usage(database.parent).free < _MIN_FREE_BYTES
    except OSError:
        return False


# Write-ahead logging needs memory that all processes share, and POSIX locks that work. Between machines, no file system
# offers the first.
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
    """Raise `StoreUnavailable` for a network file system, if the list of mounts shows it."""
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
    """Return the file system type of an absolute path: that of its longest mount point, or the last of equal ones."""
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
    # In mountinfo, spaces, tabs, newlines and backslashes of a path are three octal digits.
    return re.sub(r"\\([0-7]{3})", lambda match: chr(int(match[1], 8)), text)


MIN_SQLITE_VERSION = (3, 37, 0)
"""The first version with STRICT tables."""
LOG_SIZE = 2 * 1024 * 1024
"""Length at which the write-ahead log is copied into the database and restarted. Half of the ballast, so that the freed
space is enough for this even on a full disk."""
_RETRY_SECONDS = 0.02

type Change[T] = Callable[[sqlite3.Connection], T]


class Opening(Struct, frozen=True, kw_only=True):
    """The parameters for opening a file."""

    path: Path
    lock_timeout_seconds: float
    connection_class: type[sqlite3.Connection]
    clock: Clock
    machine: Machine


class Connections(NamedTuple):
    quick: sqlite3.Connection
    """Fails at once if another process has the lock. For the event loop."""
    patient: sqlite3.Connection
    """Waits for the lock. For threads."""
    log: int
    """Descriptor of the write-ahead log, for syncing. SQLite holds no locks on this file that closing it would drop."""


def connect(opening: Opening, *, alone: bool = False) -> Connections:
    """Open the file. `alone` excludes other processes and needs no shared memory, for a disk without any free space."""
    if sqlite3.sqlite_version_info < MIN_SQLITE_VERSION:
        raise StoreUnavailable(f"SQLite {sqlite3.sqlite_version} is too old", hint="Use SQLite 3.37 or newer")
    with contextlib.ExitStack() as opened:
        try:
            _create_file(opening.path)
            check_local_disk(opening.path.parent)
            patient = opened.enter_context(contextlib.closing(_connect(opening, timeout=opening.lock_timeout_seconds)))
            if alone:
                # Before the first access, so that the index of the write-ahead log is in memory instead of a file.
                patient.execute("PRAGMA locking_mode=EXCLUSIVE")
            else:
                # This only has an effect before the first table is created, but it always needs space.
                patient.execute("PRAGMA auto_vacuum=INCREMENTAL")
            _prepare(patient, opening)
            quick = patient if alone else opened.enter_context(contextlib.closing(_connect(opening, timeout=0)))
            for connection in (patient, quick):
                # No syncs and no checkpoints by SQLite: `SqliteDatabase` does both, so that commits can share them.
                connection.execute("PRAGMA synchronous=NORMAL")
                connection.execute("PRAGMA wal_autocheckpoint=0")
                connection.execute(f"PRAGMA journal_size_limit={LOG_SIZE}")
                # Overwrite deleted content if that needs no extra writes: journals contain private data.
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
        isolation_level=None,  # otherwise the module would start transactions by itself
        check_same_thread=False,  # used by several worker threads, one at a time: see `SqliteDatabase._turn`
        factory=opening.connection_class,
    )


def _add_functions(connection: sqlite3.Connection, clock: Clock, machine: Machine) -> None:
    """Add the clock and lease functions that `store.queries.session.SQLITE` calls."""

    def time_from_now(seconds: float | None) -> str | None:
        return None if seconds is None else render_time(clock.now() + timedelta(seconds=seconds))

    def lease_seconds_left(boot_id: str | None, until: float | None) -> float:
        # The uptime of an earlier boot means nothing, and no process of that boot is alive.
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
    """Create an empty file that only its owner can read. SQLite creates its other files with the same mode."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.exists():
        return
    # Created under another name and then linked: closing the database file would drop all POSIX locks that this process
    # has on it, including those of SQLite.
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
    # Otherwise the new file might not survive a power failure: SQLite only syncs the folders of files that it created.
    for folder in (path.parent, path.parent.parent):
        sync_folder(folder)


def _prepare(connection: sqlite3.Connection, opening: Opening) -> None:
    """Switch to write-ahead logging and migrate. This takes the write lock, so it fails for an unusable folder."""
    _switch_to_wal(connection, opening)
    transact(connection, lambda inside: migrate(inside, opening.path), None)


def _switch_to_wal(connection: sqlite3.Connection, opening: Opening) -> None:
    # SQLite's own lock timeout doesn't apply to this pragma.
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
    # Immediate: a transaction that starts by reading would fail if another process writes before it does.
    connection.execute("BEGIN IMMEDIATE")
    try:
        result = change(connection)
        _commit(connection, landed)
    finally:
        if connection.in_transaction:
            # The error that led here is the one to report.
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
        # It was committed after all. The checkpoint syncs it, or fails.
        connection.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchall()
