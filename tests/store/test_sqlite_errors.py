"""Every SQLite failure is mapped, and a commit that failed midway is checked."""

import sqlite3
from collections.abc import Iterator
from pathlib import Path

import pytest

from metier.errors import StoreError
from metier.store.failures import StoreDamaged, StoreFull, StoreUnavailable
from metier.store.sqlite.connection import build_failure
from metier.store.sqlite.store import open_sqlite_store
from metier.testing.store_case import build_entries, build_run

NOT_ERRORS = ("SQLITE_LIMIT_", "SQLITE_DBCONFIG_")
MEANINGS: dict[str, type[StoreError]] = {
    "SQLITE_FULL": StoreFull,
    "SQLITE_CORRUPT": StoreDamaged,
    "SQLITE_CORRUPT_INDEX": StoreDamaged,
    "SQLITE_NOTADB": StoreDamaged,
    "SQLITE_IOERR_CORRUPTFS": StoreDamaged,
    "SQLITE_CONSTRAINT": StoreDamaged,
    "SQLITE_CONSTRAINT_UNIQUE": StoreDamaged,
    "SQLITE_BUSY": StoreUnavailable,
    "SQLITE_BUSY_RECOVERY": StoreUnavailable,
    "SQLITE_LOCKED": StoreUnavailable,
    "SQLITE_READONLY": StoreUnavailable,
    "SQLITE_READONLY_DBMOVED": StoreUnavailable,
    "SQLITE_CANTOPEN": StoreUnavailable,
    "SQLITE_IOERR": StoreUnavailable,
    "SQLITE_IOERR_FSYNC": StoreUnavailable,
    "SQLITE_NOMEM": StoreUnavailable,
    "SQLITE_TOOBIG": StoreUnavailable,
    "SQLITE_ERROR": StoreUnavailable,
    "SQLITE_PROTOCOL": StoreUnavailable,
    "SQLITE_MISUSE": StoreUnavailable,
}


def exceptions(kind: type[sqlite3.Error] = sqlite3.Error) -> Iterator[type[sqlite3.Error]]:
    yield kind
    for child in kind.__subclasses__():
        yield from exceptions(child)


def error_codes() -> dict[str, int]:
    return {
        name: getattr(sqlite3, name)
        for name in dir(sqlite3)
        if name.startswith("SQLITE_") and not name.startswith(NOT_ERRORS) and getattr(sqlite3, name) & 0xFF <= 27
    }


def failed(code: int, kind: type[sqlite3.Error] = sqlite3.OperationalError) -> sqlite3.Error:
    error = kind("what SQLite said")
    error.sqlite_errorcode = code
    error.sqlite_errorname = "SQLITE_SOMETHING"
    return error


def test_every_exception_and_error_code_has_a_message_with_a_hint(tmp_path: Path) -> None:
    assert len(error_codes()) > 80
    for kind in exceptions():
        for code in error_codes().values():
            failure = build_failure(failed(code, kind), tmp_path / "state.db")
            assert isinstance(failure, StoreFull | StoreDamaged | StoreUnavailable)
            assert "state.db" in failure.message
            assert failure.hint
        assert isinstance(build_failure(kind("of the Python module"), tmp_path / "state.db"), StoreUnavailable)


@pytest.mark.parametrize("name", MEANINGS)
def test_an_error_code_maps_to_its_exception(name: str, tmp_path: Path) -> None:
    failure = build_failure(failed(error_codes()[name]), tmp_path / "state.db")

    assert type(failure) is MEANINGS[name]


COMMITS = ("COMMIT", "INSERT INTO journal")
WRITTEN = ("entry", 64 * "a")
"""Entries that name no blob are written by one statement, which commits by itself; others in a transaction."""


class CommitThenFail(sqlite3.Connection):
    """A connection whose commit succeeds but whose reply is lost."""

    broken = False

    def execute(self, sql: str, *parameters: object) -> sqlite3.Cursor:
        cursor = super().execute(sql, *parameters)  # pyright: ignore[reportArgumentType]
        if sql.startswith(COMMITS) and not self.in_transaction and type(self).broken:
            raise failed(sqlite3.SQLITE_IOERR_FSYNC)
        return cursor


class FailToCommit(sqlite3.Connection):
    """A connection that fails before the commit."""

    broken = False

    def execute(self, sql: str, *parameters: object) -> sqlite3.Cursor:
        if sql == "COMMIT" and type(self).broken:
            super().execute("ROLLBACK")
            raise failed(sqlite3.SQLITE_IOERR_FSYNC)
        if sql.startswith(COMMITS) and not self.in_transaction and type(self).broken:
            raise failed(sqlite3.SQLITE_IOERR_FSYNC)
        return super().execute(sql, *parameters)  # pyright: ignore[reportArgumentType]


@pytest.mark.anyio
@pytest.mark.parametrize("durable", [True, False])
@pytest.mark.parametrize("text", WRITTEN)
async def test_a_commit_with_a_lost_reply_succeeds_if_it_is_stored(text: str, durable: bool, database: Path) -> None:
    store = await open_sqlite_store(database, connection_class=CommitThenFail)
    await store.create_run(build_run("r1"))
    lease = await store.take_lease("r1", owner="ann", seconds=15)
    CommitThenFail.broken = True
    try:
        await store.append(lease, 1, build_entries(1, 2, text=text), durable=durable)
    finally:
        CommitThenFail.broken = False

    assert await store.read_journal("r1") == build_entries(1, 2, text=text)
    await store.close()


@pytest.mark.anyio
@pytest.mark.parametrize("durable", [True, False])
@pytest.mark.parametrize("text", WRITTEN)
async def test_a_missing_commit_is_a_failure_and_can_be_repeated(text: str, durable: bool, database: Path) -> None:
    store = await open_sqlite_store(database, connection_class=FailToCommit)
    await store.create_run(build_run("r1"))
    lease = await store.take_lease("r1", owner="ann", seconds=15)
    FailToCommit.broken = True
    try:
        with pytest.raises(StoreUnavailable, match="the disk reports an error"):
            await store.append(lease, 1, build_entries(1, 2, text=text), durable=durable)
    finally:
        FailToCommit.broken = False

    assert await store.read_journal("r1") == []
    await store.append(lease, 1, build_entries(1, 2, text=text), durable=durable)
    assert await store.read_journal("r1") == build_entries(1, 2, text=text)
    await store.close()
