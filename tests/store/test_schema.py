"""Older files are migrated atomically; newer and foreign files are rejected."""

import sqlite3
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from metier.store.contexts import ContextChange, ContextState
from metier.store.failures import StoreUnavailable
from metier.store.sqlite.schema import MIGRATIONS, migrate
from metier.store.sqlite.store import SqliteStore
from metier.testing.store_case import build_entries

type Open = Callable[[], Awaitable[SqliteStore]]

STEPS = (*MIGRATIONS, "CREATE TABLE more (a TEXT); CREATE TABLE and_more (b TEXT)")


def tables(connection: sqlite3.Connection) -> set[str]:
    return {str(name) for (name,) in connection.execute("SELECT name FROM sqlite_schema WHERE type = 'table'")}


@pytest.mark.anyio
async def test_a_file_of_an_older_version_is_migrated(open_store: Open, database: Path) -> None:
    await (await open_store()).close()
    connection = sqlite3.connect(database, isolation_level=None)

    migrate(connection, database, steps=STEPS)
    migrate(connection, database, steps=STEPS)

    assert {"more", "and_more", "journal"} <= tables(connection)
    versions = [version for (version,) in connection.execute("SELECT version FROM schema_version")]
    assert versions == list(range(1, len(STEPS) + 1))
    connection.close()


@pytest.mark.anyio
async def test_a_failed_migration_step_changes_nothing(open_store: Open, database: Path) -> None:
    await (await open_store()).close()
    connection = sqlite3.connect(database, isolation_level=None)
    before = tables(connection)

    connection.execute("BEGIN IMMEDIATE")
    with pytest.raises(sqlite3.Error):
        migrate(connection, database, steps=(*STEPS, "CREATE TABLE third (a TEXT); CREATE TABLE more (a TEXT)"))
    connection.execute("ROLLBACK")

    assert tables(connection) == before
    connection.close()
    await (await open_store()).close()


@pytest.mark.anyio
async def test_a_file_of_a_newer_version_is_refused(open_store: Open, database: Path) -> None:
    await (await open_store()).close()
    connection = sqlite3.connect(database, isolation_level=None)
    migrate(connection, database, steps=STEPS)
    connection.close()

    with pytest.raises(StoreUnavailable) as refused:
        await open_store()

    known = len(MIGRATIONS)
    assert refused.value.message.endswith(f"has version {known + 1}, but this program supports versions up to {known}")
    assert refused.value.hint == "Upgrade metier, or use another folder"


@pytest.mark.anyio
async def test_the_database_of_another_program_is_refused(open_store: Open, database: Path) -> None:
    database.parent.mkdir()
    connection = sqlite3.connect(database)
    connection.execute("CREATE TABLE theirs (a TEXT)")
    connection.close()

    with pytest.raises(StoreUnavailable, match="is a database of another program"):
        await open_store()


@pytest.mark.anyio
@pytest.mark.parametrize("version", range(1, len(MIGRATIONS)))
async def test_a_file_of_every_version_is_migrated_with_all_its_data(
    version: int, open_store: Open, database: Path
) -> None:
    database.parent.mkdir()
    connection = sqlite3.connect(database, isolation_level=None)
    migrate(connection, database, steps=MIGRATIONS[:version])
    connection.execute(
        "INSERT INTO runs (run_id, context_id, status, task, agent, model, parent_run_id, created_at, updated_at,"
        " turns, cost_usd, reason) VALUES ('r1', 'c1', 'pending', 'tidy', '', '', '', '2026-11-01T12:00:00+00:00',"
        " '2026-11-01T12:00:00+00:00', 0, 0, '')"
    )
    connection.close()

    store = await open_store()
    run = await store.find_run("r1")
    lease = await store.take_lease("r1", owner="ann", seconds=15)
    await store.append(lease, 1, build_entries(1))
    state = await store.contexts.commit("c1", ContextChange(state=ContextState(context_id="c1")))

    assert run is not None
    assert (run.task, run.queue, state.version) == ("tidy", "", 1)
    assert await store.list_attempts("a1") == []
    await store.close()
