"""SQLite's exceptions in the words of `store.failures`. Nothing above this room sees a `sqlite3` error."""

import os
import shutil
import sqlite3
from pathlib import Path
from typing import NamedTuple

from metier.errors import StoreError
from metier.store.failures import StoreDamaged, StoreFull, StoreUnavailable


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
    meaning = _find_meaning(error, database)
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


def _find_meaning(error: sqlite3.Error | UnicodeDecodeError, database: Path) -> _Meaning:
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
