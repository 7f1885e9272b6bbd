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
from datetime import datetime
from typing import Any, LiteralString, NamedTuple

import anyio
import anyio.to_thread
import psycopg
from msgspec import Struct
from psycopg.conninfo import conninfo_to_dict
from psycopg.rows import TupleRow
from psycopg_pool import AsyncConnectionPool, PoolClosed, PoolTimeout

from metier.errors import StoreError
from metier.store.base import ServerHealth, make_printable
from metier.store.failures import StoreDamaged, StoreFull, StoreUnavailable
from metier.store.postgres.schema import Connection, migrate
from metier.store.queries.session import (
    POSTGRES,
    Dialect,
    RowExists,
    Session,
    SqlRow,
    SqlValue,
    Work,
    translate_for_postgres,
)


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
    meaning = _get_meaning(error)
    primary = error.diag.message_primary or str(error).strip().partition("\n")[0]
    name = error.sqlstate or type(error).__name__
    return meaning.kind(f"The run store '{shown}' {meaning.fact} ({name}: {primary})", hint=meaning.hint)


def build_closed(shown: str) -> StoreUnavailable:
    return StoreUnavailable(f"The run store '{shown}' is closed", hint="Open it again")


def is_closed(error: psycopg.Error) -> bool:
    return isinstance(error, PoolClosed)


def _get_meaning(error: psycopg.Error) -> _Meaning:
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


class PostgresSession:
    """`store.queries.session.Session` on a connection."""

    def __init__(self, connection: Connection) -> None:
        self.connection = connection

    @property
    def dialect(self) -> Dialect:
        return POSTGRES

    async def execute(self, statement: str, values: Sequence[SqlValue] = ()) -> int:
        return (await self._run(statement, values)).rowcount

    async def fetch_one(self, query: str, values: Sequence[SqlValue] = ()) -> SqlRow | None:
        row = await (await self._run(query, values)).fetchone()
        return None if row is None else _decode(row)

    async def fetch_all(self, query: str, values: Sequence[SqlValue] = ()) -> list[SqlRow]:
        return [_decode(row) for row in await (await self._run(query, values)).fetchall()]

    async def _run(self, statement: str, values: Sequence[SqlValue]) -> psycopg.AsyncCursor[TupleRow]:
        try:
            return await self.connection.execute(
                translate_for_postgres(statement), [_encode_value(value) for value in values]
            )
        except psycopg.errors.UniqueViolation as error:
            raise RowExists from error


def _encode_value(value: SqlValue) -> SqlValue:
    match value:
        case str():
            return encode_text(value)
        case int() | float() | bytes() | datetime() | None:
            return value
        case _:
            return [encode_text(each) for each in value]


def _decode(row: SqlRow) -> SqlRow:
    return tuple([decode_text(value) if isinstance(value, str) else value for value in row])


_CONNECT_SECONDS = 10
_FIRST_PAUSE_SECONDS = 0.05
_MAX_PAUSE_SECONDS = 1.0
_OLDEST_SERVER = 130000
_COMMITS_KEPT = "1 hour"


class PoolOptions(Struct, frozen=True, kw_only=True):
    max_connections: int = 8
    patience_seconds: float = 60.0
    """How long a server that does not answer is waited for before work fails."""


class PostgresDatabase:
    """`store.queries.session.Database` on a server. Made by `open_database`. Belongs to one event loop."""

    def __init__(self, address: Address, pool: AsyncConnectionPool[Connection], options: PoolOptions) -> None:
        self.address = address
        self._pool = pool
        self._options = options
        self._is_open = True

    async def read[T](self, work: Work[T]) -> T:
        return await self._patiently(lambda: self._with_session(work))

    async def run[T](self, work: Callable[[Connection], Awaitable[T]]) -> T:
        """Run work on the connection itself. It may run twice."""
        return await self.read(lambda db: _use_connection(db, work))

    async def write[T](
        self, work: Work[T], *, durable: bool = False, slow: bool = False, repeatable: bool = False
    ) -> T:
        del durable, slow  # every commit of a transaction is durable, and the server does the work
        if repeatable:
            return await self._patiently(lambda: self._with_session(work, in_transaction=True))
        commit_id = secrets.token_hex(16)
        found: list[T] = []

        async def once(db: Session) -> None:
            noted = await db.execute(
                "INSERT INTO agent_commits (commit_id, at) VALUES (?, clock_timestamp()) ON CONFLICT DO NOTHING",
                (commit_id,),
            )
            if noted:  # otherwise the attempt before counts, and its result is known
                found[:] = [await work(db)]

        await self._patiently(lambda: self._with_session(once, in_transaction=True))
        return found[0]

    async def append(self, work: Work[None], has_landed: Work[bool], *, durable: bool) -> None:
        """One statement is a transaction by itself: no BEGIN and COMMIT, and no note that it was committed."""
        del durable  # a part of the statement
        attempts = 0

        async def attempt(db: Session) -> None:
            nonlocal attempts
            attempts += 1
            # The answer to an earlier attempt was lost, and perhaps it counted.
            if attempts == 1 or not await has_landed(db):
                await work(db)

        await self.read(attempt)

    async def in_thread[T](self, work: Callable[[], T]) -> T:
        return await anyio.to_thread.run_sync(work)

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
                pause = min(_MAX_PAUSE_SECONDS, pause * 2 or _FIRST_PAUSE_SECONDS)
            await anyio.sleep(pause)

    async def _with_session[T](self, work: Work[T], *, in_transaction: bool = False) -> T:
        async with self._pool.connection(timeout=_CONNECT_SECONDS) as connection:
            if not in_transaction:
                return await work(PostgresSession(connection))
            async with connection.transaction():
                return await work(PostgresSession(connection))


async def _use_connection[T](db: Session, work: Callable[[Connection], Awaitable[T]]) -> T:
    assert isinstance(db, PostgresSession), "this database makes no other"
    return await work(db.connection)


async def open_database(address: Address, options: PoolOptions) -> PostgresDatabase:
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
    return PostgresDatabase(address, pool, options)


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
