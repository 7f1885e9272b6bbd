"""One PostgreSQL database, reached through a pool that outlives restarts of the server.

Work that meets a lost connection is done again until `patience_seconds` are over. What must not happen twice goes
through `once`, which writes a number of its own into the same transaction: when the answer to a commit was lost, the
number says whether it counts, and a commit that is still under way is waited for.

A task that is canceled is so between two attempts; while one is under way it is not interrupted.
"""

import secrets
import time
from collections.abc import Awaitable, Callable
from typing import Any, LiteralString

import anyio
import psycopg
from psycopg.rows import TupleRow
from psycopg_pool import AsyncConnectionPool

from metier.dataclass import dataclass
from metier.store.failures import StoreUnavailable
from metier.store.postgres.address import Address
from metier.store.postgres.errors import build_closed, build_failure, is_closed, is_lost
from metier.store.postgres.schema import Connection, migrate

type Work[T] = Callable[[Connection], Awaitable[T]]

_CONNECT_SECONDS = 10
_FIRST_PAUSE_SECONDS = 0.05
_LONGEST_PAUSE_SECONDS = 1.0
_OLDEST_SERVER = 130000
_COMMITS_KEPT = "1 hour"


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolOptions:
    max_connections: int = 8
    patience_seconds: float = 60.0
    """How long a server that does not answer is waited for before work fails."""


class Database:
    """Made by `open_database`. Belongs to one event loop."""

    def __init__(self, address: Address, pool: AsyncConnectionPool[Connection], options: PoolOptions) -> None:
        self.address = address
        self._pool = pool
        self._options = options
        self._is_open = True

    async def run[T](self, work: Work[T]) -> T:
        """Do work that may be done twice: one statement, or several that do not depend on each other."""
        return await self._patiently(lambda: self._with_connection(work))

    async def transact[T](self, work: Work[T]) -> T:
        """Do work that may be done twice, in one transaction."""

        async def inside(connection: Connection) -> T:
            async with connection.transaction():
                return await work(connection)

        return await self.run(inside)

    async def once[T](self, work: Work[T]) -> T:
        """Do work in one transaction, once, even when the connection is lost at any moment."""
        commit_id = secrets.token_hex(16)
        found: list[T] = []

        async def inside(connection: Connection) -> None:
            async with connection.transaction():
                cursor = await connection.execute(
                    "INSERT INTO agent_commits (commit_id, at) VALUES (%s, clock_timestamp()) ON CONFLICT DO NOTHING",
                    (commit_id,),
                )
                if cursor.rowcount:  # else the attempt before counts, and what it found is there
                    found[:] = [await work(connection)]

        await self.run(inside)
        return found[0]

    async def close(self) -> None:
        with anyio.CancelScope(shield=True):
            if self._is_open:
                self._is_open = False
                await self._pool.close()

    async def _patiently[T](self, attempt: Callable[[], Awaitable[T]]) -> T:
        deadline = time.monotonic() + self._options.patience_seconds
        number, pause = 0, 0.0
        while True:
            if not self._is_open:
                raise build_closed(self.address.shown)
            try:
                with anyio.CancelScope(shield=True):
                    return await attempt()
            except psycopg.Error as error:
                if is_closed(error):
                    raise build_closed(self.address.shown) from error
                if not is_lost(error) or time.monotonic() > deadline:
                    raise build_failure(error, self.address.shown) from error
            number += 1
            # Whatever else lies in the pool is as broken: the first attempts go through it without a pause.
            if number > self._options.max_connections:
                pause = min(_LONGEST_PAUSE_SECONDS, pause * 2 or _FIRST_PAUSE_SECONDS)
            await anyio.sleep(pause)

    async def _with_connection[T](self, work: Work[T]) -> T:
        async with self._pool.connection(timeout=_CONNECT_SECONDS) as connection:
            return await work(connection)


async def open_database(address: Address, options: PoolOptions) -> Database:
    """Connect, bring the tables up to date, make the pool. Raises `StoreUnavailable`."""
    try:
        async with await connect(address) as connection:
            if connection.info.server_version < _OLDEST_SERVER:
                raise StoreUnavailable(
                    f"The server of '{address.shown}' is older than PostgreSQL 13", hint="Use PostgreSQL 13 or newer"
                )
            await migrate(connection, address.shown)
            await connection.execute(
                "DELETE FROM agent_commits WHERE at < clock_timestamp() - %s::interval", (_COMMITS_KEPT,)
            )
        pool: AsyncConnectionPool[Connection] = AsyncConnectionPool(
            address.conninfo,
            kwargs=_CONNECTION_OPTIONS,
            configure=_configure,
            min_size=0,
            max_size=options.max_connections,
            open=False,
        )
        await pool.open()
    except psycopg.Error as error:
        raise build_failure(error, address.shown) from error
    return Database(address, pool, options)


_CONNECTION_OPTIONS: dict[str, Any] = {
    "autocommit": True,
    "connect_timeout": _CONNECT_SECONDS,
    "fallback_application_name": "metier",
}


async def connect(address: Address) -> psycopg.AsyncConnection[TupleRow]:
    """A connection of its own, outside the pool."""
    connection = await psycopg.AsyncConnection.connect(address.conninfo, **_CONNECTION_OPTIONS)
    await _configure(connection)
    return connection


async def _configure(connection: Connection) -> None:
    await connection.execute("SET TIME ZONE 'UTC'")


async def fetch_one(connection: Connection, query: LiteralString, values: tuple[object, ...] = ()) -> TupleRow | None:
    return await (await connection.execute(query, values)).fetchone()


async def fetch_all(connection: Connection, query: LiteralString, values: tuple[object, ...] = ()) -> list[TupleRow]:
    return await (await connection.execute(query, values)).fetchall()
