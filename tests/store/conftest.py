"""Stores in their own files, with a clock and a machine controlled by the test."""

import os
import sys
from collections.abc import Awaitable, Callable, Generator
from pathlib import Path

import psycopg
import pytest

from metier.store.postgres.database import Address, read_address
from metier.store.postgres.store import open_postgres_store
from metier.store.sqlite.store import SqliteStore, open_sqlite_store
from metier.testing.fake_machine import FakeMachine
from metier.testing.store_case import Subject
from services.postgres_server import PostgresServer

# Tests are imported one by one, so what they share is put where Python finds it.
sys.path.insert(0, str(Path(__file__).parent))


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture
def machine() -> FakeMachine:
    return FakeMachine()


@pytest.fixture
def database(tmp_path: Path) -> Path:
    return tmp_path / "runs" / "state.db"


@pytest.fixture
def open_store(database: Path, machine: FakeMachine) -> Callable[[], Awaitable[SqliteStore]]:
    return lambda: open_sqlite_store(database, clock=machine, machine=machine)


@pytest.fixture
def subject(open_store: Callable[[], Awaitable[SqliteStore]], machine: FakeMachine) -> Subject:
    return Subject(open=open_store, pass_seconds=machine.pass_seconds)


FAKE_CLOCK = """
CREATE SCHEMA fake;
CREATE TABLE fake.clock (at TIMESTAMPTZ NOT NULL);
INSERT INTO fake.clock VALUES ('2026-11-01 12:00:00+00');
CREATE FUNCTION fake.clock_timestamp() RETURNS TIMESTAMPTZ LANGUAGE sql VOLATILE AS 'SELECT at FROM fake.clock';
"""
"""The store asks for `clock_timestamp()`, and a schema that comes before the server's own answers."""


@pytest.fixture
def postgres_address(postgres_url: str) -> Address:
    return read_address("URL", {"URL": postgres_url})


EMPTY = """
DO $$ DECLARE one TEXT; BEGIN
    PERFORM pg_terminate_backend(pid, 30000) FROM pg_stat_activity
        WHERE datname = current_database() AND pid <> pg_backend_pid();
    SET LOCAL session_replication_role = replica;
    FOR one IN SELECT quote_ident(tablename) FROM pg_tables
        WHERE schemaname = 'public' AND tablename <> 'agent_schema_version'
    LOOP EXECUTE 'DELETE FROM ' || one; END LOOP;
    PERFORM setval(format('%I.%I', schemaname, sequencename)::regclass, 1, false) FROM pg_sequences
        WHERE schemaname = 'public';
    UPDATE fake.clock SET at = '2026-11-01 12:00:00+00';
END $$
"""
"""No connection of the test before, no rows, and the clock where it began. The tables stay: making them takes long."""


@pytest.fixture(scope="module")
def subject_url(postgres_server: PostgresServer) -> Generator[str]:
    """The database for all subjects of a file."""
    name = f"subject_{os.getpid()}"
    url = postgres_server.create_database(name)
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(FAKE_CLOCK)
    yield url
    postgres_server.drop_database(name)


@pytest.fixture
def postgres_subject(subject_url: str) -> Subject:
    """An empty PostgreSQL store whose server clock is controlled by the test."""
    with psycopg.connect(subject_url, autocommit=True) as connection:
        connection.execute(EMPTY)
    address = read_address("URL", {"URL": f"{subject_url}&options=-csearch_path%3Dpublic,fake,pg_catalog"})

    async def pass_seconds(seconds: float) -> None:
        async with await psycopg.AsyncConnection.connect(subject_url, autocommit=True) as connection:
            await connection.execute("UPDATE fake.clock SET at = at + make_interval(secs => %s)", (seconds,))

    return Subject(open=lambda: open_postgres_store(address), pass_seconds=pass_seconds)
