"""Read-only checks of a SQLite store: integrity, checksums and free space."""

import json
import shutil
import sqlite3
import time
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

from msgspec import Struct

from metier.errors import StoreError
from metier.store.base import StoredEntry, checksum_of
from metier.store.machine import SystemMachine
from metier.store.sqlite.connection import build_failure
from metier.store.sqlite.store import MIN_FREE_BYTES, Ballast

CHECK_TIMEOUT_SECONDS = 10.0
"""Time limit of the check. A database with millions of runs is only partly read."""
_STEPS_BETWEEN_CHECKS = 10_000


class StoreHealth(Struct, frozen=True, kw_only=True):
    problem: str = ""
    """The problem found, or empty."""
    hint: str = ""
    entries: int = 0
    """Number of journal entries whose checksum was checked."""
    is_partial: bool = False
    """True if the time limit was reached."""


class StoreRoom(Struct, frozen=True, kw_only=True):
    free_bytes: int
    has_reserve: bool

    @property
    def is_enough(self) -> bool:
        """Return True if the reserve exists or could be created."""
        return self.free_bytes >= MIN_FREE_BYTES


def examine_database(database: Path, *, seconds: float = CHECK_TIMEOUT_SECONDS) -> StoreHealth:
    """Run SQLite's own check, then compare the checksum of every journal entry."""
    until = time.monotonic() + seconds
    try:
        with _open_read_only(database) as connection:
            # SQLite interrupts the statement when the handler returns true.
            connection.set_progress_handler(lambda: time.monotonic() > until, _STEPS_BETWEEN_CHECKS)
            found = [str(row[0]) for row in connection.execute("PRAGMA quick_check(3)")]
            if found != ["ok"]:
                raise sqlite3.DatabaseError("; ".join(found))
            return _check_entries(connection, until=until)
    except (sqlite3.Error, UnicodeDecodeError) as error:
        if isinstance(error, sqlite3.OperationalError) and "interrupted" in str(error):
            return StoreHealth(is_partial=True)
        failure = _describe(error, database)
        return StoreHealth(problem=failure.message, hint=failure.hint)


def examine_room(database: Path) -> StoreRoom:
    return StoreRoom(free_bytes=shutil.disk_usage(database.parent).free, has_reserve=Ballast(database).exists())


def list_newest_runs(database: Path, *, limit: int) -> list[str]:
    """List the newest runs. Return an empty list if the database cannot be read."""
    try:
        with _open_read_only(database) as connection:
            found = connection.execute("SELECT run_id FROM runs ORDER BY number DESC LIMIT ?", (limit,))
            return [str(run_id) for (run_id,) in found]
    except (sqlite3.Error, UnicodeDecodeError):
        return []


def find_known_runs(database: Path, run_ids: Sequence[str]) -> frozenset[str] | None:
    """Return the runs that are in the index, or None if the database cannot be read."""
    try:
        with _open_read_only(database) as connection:
            found = connection.execute(
                "SELECT run_id FROM runs WHERE run_id IN (SELECT value FROM json_each(?))", (json.dumps(list(run_ids)),)
            )
            return frozenset(str(run_id) for (run_id,) in found)
    except (sqlite3.Error, UnicodeDecodeError):
        return None


def _open_read_only(database: Path) -> closing[sqlite3.Connection]:
    """Open a connection that cannot write."""
    # A check must not migrate or repair the file that it reports on.
    return closing(sqlite3.connect(f"{database.absolute().as_uri()}?mode=ro", uri=True, timeout=2))


def has_steady_clock() -> bool:
    """Return True if leases use a clock that can't be set and the boot id is known."""
    return SystemMachine().boot_id() != "wall"


def _check_entries(connection: sqlite3.Connection, *, until: float) -> StoreHealth:
    count = 0
    for run_id, seq, kind, data, checksum in connection.execute(
        "SELECT run_id, seq, kind, data, checksum FROM journal"
    ):
        if checksum != checksum_of(run_id, StoredEntry(seq, kind, data)):
            return StoreHealth(
                problem=f"Entry {seq} of run {run_id!r} is not what was written",
                hint="Restore the run store from a backup; this run cannot continue",
                entries=count,
            )
        count += 1
        if time.monotonic() > until:
            return StoreHealth(entries=count, is_partial=True)
    return StoreHealth(entries=count)


def _describe(error: sqlite3.Error | UnicodeDecodeError, database: Path) -> StoreError:
    # `quick_check` reports damage as rows, so the error built from them has no code.
    if isinstance(error, sqlite3.Error) and not getattr(error, "sqlite_errorname", ""):
        error.sqlite_errorcode, error.sqlite_errorname = sqlite3.SQLITE_CORRUPT, "SQLITE_CORRUPT"
    return build_failure(error, database)
