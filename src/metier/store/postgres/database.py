"""One PostgreSQL database: its address, a connection pool that survives restarts of the server, and its health.

Nothing outside this package sees an exception of the driver: they become those of `store.failures`. Text is encoded,
because PostgreSQL cannot store the character NUL.
"""

import re
import secrets
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from typing import Any, LiteralString, NamedTuple

import anyio
import psycopg
from msgspec import Struct
from psycopg.conninfo import conninfo_to_dict
from psycopg.rows import TupleRow
from psycopg_pool import AsyncConnectionPool, PoolClosed, PoolTimeout

from metier.errors import StoreError
from metier.store.base import ServerHealth, make_printable
from metier.store.failures import StoreDamaged, StoreFull, StoreUnavailable
from metier.store.postgres.schema import Connection, migrate


@dataclass(frozen=True, slots=True)
class Address:
    conninfo: str = field(repr=False)
    shown: str
    """Host, port, database and user; never the password."""


def read_address(variable: str, environ: Mapping[str, str]) -> Address:
    """Raises `StoreUnavailable` when the variable is not set or is no address."""
    text = environ.get(variable, "").strip()
    if not text:
        raise StoreUnavailable(
            f"The store is PostgreSQL, and {variable} is not set",
            hint=f'Set the address: export {variable}="postgresql://user@host:5432/database"',
        )
    try:
        parts = conninfo_to_dict(text)
    except psycopg.ProgrammingError:
        # Not `from` it: the message of the library repeats the address, password included.
        raise StoreUnavailable(
            f"What {variable} says is not the address of a PostgreSQL server",
            hint='Write it like "postgresql://user:password@host:5432/database"; escape special characters with %',
        ) from None
    return Address(text, _show(parts))


def _show(parts: Mapping[str, object]) -> str:
    host = parts.get("host") or parts.get("hostaddr") or "localhost"
    user = f"{parts['user']}@" if parts.get("user") else ""
    port = f":{parts['port']}" if parts.get("port") else ""
    return f"postgresql://{user}{host}{port}/{parts.get('dbname') or ''}"


class _Meaning(NamedTuple):
    kind: type[StoreError]
    fact: str
    hint: str


_BACKUP = "Restore the database from a backup; what was acknowledged before may be gone"
_REPORT = "Try again; if it happens again, report it with this message"
_ADDRESS = "Check the address, the user and the password of the database"
_RIGHTS = "Give the user of the address the right to create and change tables there"

_GONE = _Meaning(StoreUnavailable, "does not answer", "Start the server, or correct the address; then resume the run")
_BUSY = _Meaning(StoreUnavailable, "has no connection left", "Raise max_connections of the server, or use a pooler")
_FULL = _Meaning(StoreFull, "has no room to grow", "Free some space on the server, then resume the run")
_UNUSABLE = _Meaning(StoreUnavailable, "cannot be used", _REPORT)

_BY_STATE = {
    "53100": _FULL,
    "53300": _BUSY,
    "58030": _Meaning(StoreUnavailable, "reports an error of its disk", "Look at the log of the server"),
    "42501": _Meaning(StoreUnavailable, "does not let this user do that", _RIGHTS),
    "25006": _Meaning(StoreUnavailable, "only reads", "Use the address of the primary server"),
    "3D000": _Meaning(StoreUnavailable, "has no such database", "Create it with createdb, or correct the address"),
    "28": _Meaning(StoreUnavailable, "does not let this user in", _ADDRESS),
    "XX001": _Meaning(StoreDamaged, "is damaged", _BACKUP),
    "XX002": _Meaning(StoreDamaged, "is damaged", _BACKUP),
    "23": _Meaning(StoreDamaged, "contradicts itself", _BACKUP),
    "08": _GONE,
    "57": _GONE,
    "53": _BUSY,
}
"""By the SQLSTATE, or by its first two characters."""

_SURELY_GONE = ("08", "57P", "25006")
_TRY_AGAIN = ("40", "55P03", "57014")


def is_lost(error: psycopg.Error) -> bool:
    """The connection broke or the server is going down or coming up: whether the last commit counts is not known."""
    if isinstance(error, PoolTimeout):
        return True
    state = error.sqlstate or ""
    if state:
        return state.startswith((*_SURELY_GONE, *_TRY_AGAIN))
    return isinstance(error, psycopg.OperationalError)


def build_failure(error: psycopg.Error, shown: str) -> StoreError:
    meaning = _find_meaning(error)
    primary = error.diag.message_primary or str(error).strip().partition("\n")[0]
    name = error.sqlstate or type(error).__name__
    return meaning.kind(f"The run store '{shown}' {meaning.fact} ({name}: {primary})", hint=meaning.hint)


def build_closed(shown: str) -> StoreUnavailable:
    return StoreUnavailable(f"The run store '{shown}' is closed", hint="Open it again")


def is_closed(error: psycopg.Error) -> bool:
    return isinstance(error, PoolClosed)


def _find_meaning(error: psycopg.Error) -> _Meaning:
    state = error.sqlstate or ""
    if not state:
        return _GONE if isinstance(error, psycopg.OperationalError) else _UNUSABLE
    return _BY_STATE.get(state) or _BY_STATE.get(state[:2]) or _UNUSABLE


_MARK = "\x10"  # data link escape: "what follows means something else"
_MARKED = re.compile(f"{_MARK}(.)", re.DOTALL)


def encode_text(text: str) -> str:
    """Beginnings stay beginnings: a prefix of a text is stored as a prefix of what is stored for it."""
    return make_printable(text).replace(_MARK, _MARK + _MARK).replace("\x00", _MARK + "0")


def decode_text(text: str) -> str:
    return _MARKED.sub(lambda found: "\x00" if found[1] == "0" else found[1], text) if _MARK in text else text


type Work[T] = Callable[[Connection], Awaitable[T]]

_CONNECT_SECONDS = 10
_FIRST_PAUSE_SECONDS = 0.05
_LONGEST_PAUSE_SECONDS = 1.0
_OLDEST_SERVER = 130000
_COMMITS_KEPT = "1 hour"


class PoolOptions(Struct, frozen=True, kw_only=True):
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


_HEALTH_CONNECT_SECONDS = 5


def check_server(variable: str, environ: Mapping[str, str], run_ids: Sequence[str]) -> ServerHealth | None:
    """Nothing where it does not answer, or has no tables yet."""
    try:
        address = read_address(variable, environ)
        with closing(psycopg.connect(address.conninfo, connect_timeout=_HEALTH_CONNECT_SECONDS)) as connection:
            began = time.time()
            row = connection.execute("SELECT extract(epoch FROM clock_timestamp())::float8").fetchone()
            ended = time.time()
            known = connection.execute(
                "SELECT run_id FROM agent_runs WHERE run_id = ANY(%s)", ([encode_text(each) for each in run_ids],)
            )
            return ServerHealth(
                seconds_ahead=float(row[0]) - (began + ended) / 2 if row else 0.0,
                doubt_seconds=(ended - began) / 2,
                known=frozenset(decode_text(str(run_id)) for (run_id,) in known),
            )
    except (psycopg.Error, StoreUnavailable):
        return None
