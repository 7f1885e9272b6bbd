"""The server announces new journal entries, and a listener with a broken connection polls."""

from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager

import anyio
import psycopg
import pytest

from metier.store.base import Lease
from metier.store.postgres.database import Address, PoolOptions, open_database
from metier.store.postgres.store import POLL_SECONDS, PostgresStore, Watcher, open_postgres_store
from metier.testing.store_case import build_entries, build_run

pytestmark = pytest.mark.anyio

NEVER = (3600.0, 3600.0)
LISTENERS = "SELECT pid FROM pg_stat_activity WHERE query LIKE 'LISTEN %' AND datname = current_database()"


@asynccontextmanager
async def watching(
    address: Address, poll_seconds: tuple[float, float]
) -> AsyncGenerator[tuple[Watcher, PostgresStore, Lease]]:
    """A watcher with its own connection pool, and the driver of a run elsewhere."""
    store = await open_postgres_store(address)
    database = await open_database(address, PoolOptions())
    watcher = Watcher(database, poll_seconds=poll_seconds)
    try:
        await store.create_run(build_run("r1"))
        yield watcher, store, await store.take_lease("r1", owner="ann", seconds=600)
    finally:
        await watcher.close()
        await database.close()
        await store.close()


async def find_listeners(url: str, *, but: frozenset[int] = frozenset()) -> frozenset[int]:
    """Return the listeners as soon as there is a new one."""
    with anyio.fail_after(100):
        async with await psycopg.AsyncConnection.connect(url, autocommit=True) as connection:
            while True:
                found = frozenset(int(pid) for (pid,) in await (await connection.execute(LISTENERS)).fetchall())
                if found - but:
                    return found
                await anyio.sleep(0.02)


async def end_connections(url: str, pids: frozenset[int]) -> None:
    async with await psycopg.AsyncConnection.connect(url, autocommit=True) as connection:
        for pid in pids:
            await connection.execute("SELECT pg_terminate_backend(%s)", (pid,))


async def test_a_waiting_task_is_notified_by_the_server_without_polling(
    postgres_address: Address, postgres_url: str
) -> None:
    async with watching(postgres_address, NEVER) as (watcher, store, lease):
        with anyio.fail_after(100):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(watcher.wait, "r1", _has_entries(store))
                await find_listeners(postgres_url)
                await anyio.wait_all_tasks_blocked()
                await store.append(lease, 1, build_entries(1))


async def test_a_listener_reconnects_after_a_lost_connection(postgres_address: Address, postgres_url: str) -> None:
    async with watching(postgres_address, NEVER) as (watcher, store, lease):
        with anyio.fail_after(60):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(watcher.wait, "r1", _has_entries(store))
                first = await find_listeners(postgres_url)
                await end_connections(postgres_url, first)
                await find_listeners(postgres_url, but=first)
                await anyio.wait_all_tasks_blocked()
                await store.append(lease, 1, build_entries(1))


async def test_changes_during_a_lost_connection_are_found_by_polling(
    postgres_address: Address, postgres_url: str
) -> None:
    async with watching(postgres_address, POLL_SECONDS) as (watcher, store, lease):
        with anyio.fail_after(60):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(watcher.wait, "r1", _has_entries(store))
                await end_connections(postgres_url, await find_listeners(postgres_url))
                await store.append(lease, 1, build_entries(1))


def _has_entries(store: PostgresStore) -> Callable[[], Awaitable[bool]]:
    async def has_come() -> bool:
        return bool(await store.read_journal("r1", limit=1))

    return has_come
