"""One PostgreSQL database: its address, a connection pool that survives server restarts, and its health.

Exceptions of the driver are converted to those of `store.failures`. Text is encoded because PostgreSQL cannot store NUL
characters.
"""

import logging
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

logger = logging.getLogger("metier.store")
_POOL_LOGGER = logging.getLogger("psycopg.pool")


# A dataclass, not a Struct: its `repr` must not show the password.
@dataclass(frozen=True, slots=True)
class Address:
    conninfo: str = field(repr=False)
    shown: str
    """Host, port, database and user, but never the password."""


def read_address(variable: str, environ: Mapping[str, str]) -> Address:
    """Read the address. Raises `StoreUnavailable` if the variable is not set or is invalid."""
    text = environ.get(variable, "").strip()
    if not text:
        raise StoreUnavailable(
            f"{variable} is not set, so the PostgreSQL store cannot be opened",
            hint=f'Set the address: export {variable}="postgresql://user@host:5432/database"',
        )
    try:
        parts = conninfo_to_dict(text)
    except psycopg.ProgrammingError:
        # `from None`, because the driver's message repeats the address, including the password.
        raise StoreUnavailable(
            f"{variable} is not the address of a PostgreSQL server",
            hint='Write it like "postgresql://user:password@host:5432/database"; escape special characters with %',
        ) from None
    return Address(text, _show(parts))


def _show(parts: Mapping[str, object]) -> str:
    host = parts.get("host") or parts.get("hostaddr") or "localhost"
    user = f"{parts['user']}@" if parts.get("user") else ""
    port = f":{parts['port']}" if parts.get("port") else ""
    return f"postgresql://{user}{host}{port}/{parts.get('dbname') or ''}"


class _Explanation(NamedTuple):
    kind: type[StoreError]
    fact: str
    hint: str


_BACKUP = "Restore the database from a backup; acknowledged changes may be lost"
_REPORT = "Try again; if it happens again, report it with this message"
_ADDRESS = "Check the address, the user and the password of the database"
_RIGHTS = "Grant the database user the right to create and change tables"

_GONE = _Explanation(
    StoreUnavailable, "doesn't answer", "Start the server, or correct the address; then resume the run"
)
_BUSY = _Explanation(StoreUnavailable, "has no connection left", "Raise max_connections of the server, or use a pooler")
_FULL = _Explanation(StoreFull, "has no room to grow", "Free some space on the server, then resume the run")
_UNUSABLE = _Explanation(StoreUnavailable, "cannot be used", _REPORT)

_BY_STATE = {
    # disk_full
    "53100": _FULL,
    # too_many_connections
    "53300": _BUSY,
    # io_error
    "58030": _Explanation(StoreUnavailable, "reports a disk error", "Check the server's log"),
    # insufficient_privilege
    "42501": _Explanation(StoreUnavailable, "doesn't permit this operation", _RIGHTS),
    # read_only_sql_transaction: a standby
    "25006": _Explanation(StoreUnavailable, "is read-only", "Use the address of the primary server"),
    "3D000": _Explanation(StoreUnavailable, "has no such database", "Create it with createdb, or correct the address"),
    # Class of invalid authorization.
    "28": _Explanation(StoreUnavailable, "rejected the login", _ADDRESS),
    # data_corrupted, then index_corrupted
    "XX001": _Explanation(StoreDamaged, "is damaged", _BACKUP),
    "XX002": _Explanation(StoreDamaged, "is damaged", _BACKUP),
    # Class of integrity constraints. No statement violates one unless the data is wrong: see `RowExists`.
    "23": _Explanation(StoreDamaged, "contradicts itself", _BACKUP),
    # Classes of connection failures, operator intervention (such as a shutdown) and missing resources.
    "08": _GONE,
    "57": _GONE,
    "53": _BUSY,
}
"""By SQLSTATE, or by its first two characters."""

_SURELY_GONE = ("08", "57P", "25006")
"""Broken connections, shutdowns, and a server that became a read-only standby."""
_TRY_AGAIN = ("40", "55P03", "57014")
"""Deadlocks and serialization failures, lock timeouts, canceled statements."""


def is_lost(error: psycopg.Error) -> bool:
    """Return True if the connection broke or the server is restarting, so that the last commit's outcome is unknown."""
    if isinstance(error, PoolTimeout):
        return True
    state = error.sqlstate or ""
    if state:
        return state.startswith((*_SURELY_GONE, *_TRY_AGAIN))
    # Without a SQLSTATE, the client library noticed that the connection broke: the server sent no error.
    return isinstance(error, psycopg.OperationalError)


def build_failure(error: psycopg.Error, shown: str) -> StoreError:
    explained = _explain(error)
    primary = error.diag.message_primary or str(error).strip().partition("\n")[0]
    name = error.sqlstate or type(error).__name__
    return explained.kind(f"The run store '{shown}' {explained.fact} ({name}: {primary})", hint=explained.hint)


def build_closed(shown: str) -> StoreUnavailable:
    return StoreUnavailable(f"The run store '{shown}' is closed", hint="Open it again")


def is_closed(error: psycopg.Error) -> bool:
    return isinstance(error, PoolClosed)


def _explain(error: psycopg.Error) -> _Explanation:
    state = error.sqlstate or ""
    if not state:
        return _GONE if isinstance(error, psycopg.OperationalError) else _UNUSABLE
    return _BY_STATE.get(state) or _BY_STATE.get(state[:2]) or _UNUSABLE


_ESCAPE = "\x10"  # the control character "data link escape"
_ESCAPED = re.compile(f"{_ESCAPE}(.)", re.DOTALL)


def encode_text(text: str) -> str:
    # Character by character, so that the prefix of a text is encoded as a prefix: searches by prefix rely on this.
    return make_printable(text).replace(_ESCAPE, _ESCAPE + _ESCAPE).replace("\x00", _ESCAPE + "0")


def decode_text(text: str) -> str:
    return _ESCAPED.sub(lambda found: "\x00" if found[1] == "0" else found[1], text) if _ESCAPE in text else text


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


_CONNECT_TIMEOUT_SECONDS = 10
_FIRST_PAUSE_SECONDS = 0.05
_MAX_PAUSE_SECONDS = 1.0
_MIN_SERVER_VERSION = 130000
_SILENT_SECONDS = 1.0
"""Time for which an outage is not reported: a server that restarts is often back sooner."""
_COMMIT_RETENTION = "1 hour"
"""Much longer than `outage_timeout_seconds`, after which no process looks up its commit any more."""


class PoolOptions(Struct, frozen=True, kw_only=True):
    max_connections: int = 8
    outage_timeout_seconds: float = 60.0
    """Maximum duration of an outage of the server before operations fail."""


class PostgresDatabase:
    """`store.queries.session.Database` on a server, opened by `open_database`. Bound to one event loop."""

    def __init__(self, address: Address, pool: AsyncConnectionPool[Connection], options: PoolOptions) -> None:
        self.address = address
        self._pool = pool
        self._options = options
        self._is_open = True
        self._is_outage_reported = False

    async def read[T](self, work: Work[T]) -> T:
        return await self._retry(lambda: self._with_session(work))

    async def run[T](self, work: Callable[[Connection], Awaitable[T]]) -> T:
        """Run work on the driver's connection. It may run twice."""
        return await self.read(lambda db: _use_connection(db, work))

    async def write[T](
        self, work: Work[T], *, durable: bool = False, slow: bool = False, repeatable: bool = False
    ) -> T:
        del durable, slow  # every commit of a transaction is durable, and the server does the work
        if repeatable:
            return await self._retry(lambda: self._with_session(work, in_transaction=True))
        commit_id = secrets.token_hex(16)
        # Outside of the attempt: if the commit succeeded but its response was lost, the next attempt returns this
        # result.
        results: list[T] = []

        async def once(db: Session) -> None:
            # In the same transaction: if the connection breaks during the commit, this row shows whether it succeeded.
            is_first = await db.execute(
                "INSERT INTO agent_commits (commit_id, at) VALUES (?, clock_timestamp()) ON CONFLICT DO NOTHING",
                (commit_id,),
            )
            if is_first:  # otherwise an earlier attempt was committed, and its result is known
                results[:] = [await work(db)]

        await self._retry(lambda: self._with_session(once, in_transaction=True))
        return results[0]

    async def append(self, work: Work[None], has_landed: Work[bool], *, durable: bool) -> None:
        """Run the one statement that appends entries. It is a transaction by itself and not recorded as a commit."""
        del durable  # part of the statement
        attempts = 0

        async def attempt(db: Session) -> None:
            nonlocal attempts
            attempts += 1
            # The response to an earlier attempt was lost, so it may have been committed.
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

    async def _retry[T](self, attempt: Callable[[], Awaitable[T]]) -> T:
        began = time.monotonic()
        number, pause = 0, 0.0
        while True:
            if not self._is_open:
                raise build_closed(self.address.shown)
            try:
                # Shielded, because a canceled statement would leave the connection and the commit in an unknown state.
                with anyio.CancelScope(shield=True):
                    result = await attempt()
                    self._report_recovery()
                    return result
            except psycopg.Error as error:
                if is_closed(error):
                    raise build_closed(self.address.shown) from error
                waited = time.monotonic() - began
                if not is_lost(error) or waited > self._options.outage_timeout_seconds:
                    raise build_failure(error, self.address.shown) from error
                self._report_outage(waited)
            number += 1
            # After a restart, all connections of the pool are broken. The first attempts use them up without a pause.
            if number > self._options.max_connections:
                pause = min(_MAX_PAUSE_SECONDS, pause * 2 or _FIRST_PAUSE_SECONDS)
            await anyio.sleep(pause)

    def _report_outage(self, seconds: float) -> None:
        """Report an outage once for all operations that wait for its end."""
        if seconds > _SILENT_SECONDS and not self._is_outage_reported:
            self._is_outage_reported = True
            logger.warning("The run store '%s' does not answer; waiting for it", self.address.shown)

    def _report_recovery(self) -> None:
        if self._is_outage_reported:
            self._is_outage_reported = False
            logger.warning("The run store '%s' answers again", self.address.shown)

    async def _with_session[T](self, work: Work[T], *, in_transaction: bool = False) -> T:
        async with self._pool.connection(timeout=_CONNECT_TIMEOUT_SECONDS) as connection:
            if not in_transaction:
                return await work(PostgresSession(connection))
            async with connection.transaction():
                return await work(PostgresSession(connection))


async def _use_connection[T](db: Session, work: Callable[[Connection], Awaitable[T]]) -> T:
    assert isinstance(db, PostgresSession), "this database creates no other"
    return await work(db.connection)


async def open_database(address: Address, options: PoolOptions) -> PostgresDatabase:
    """Connect, migrate the tables and create the pool. Raises `StoreUnavailable`."""
    try:
        async with await connect(address) as connection:
            if connection.info.server_version < _MIN_SERVER_VERSION:
                raise StoreUnavailable(
                    f"The server of '{address.shown}' is older than PostgreSQL 13", hint="Use PostgreSQL 13 or newer"
                )
            await migrate(connection, address.shown)
            await connection.execute(
                "DELETE FROM agent_commits WHERE at < clock_timestamp() - %s::interval", (_COMMIT_RETENTION,)
            )
        pool: AsyncConnectionPool[Connection] = AsyncConnectionPool(
            address.conninfo,
            kwargs=_CONNECTION_OPTIONS,
            configure=_configure,
            # A short command opens one connection, and an idle worker keeps none that it doesn't need.
            min_size=0,
            max_size=options.max_connections,
            open=False,
        )
        if _POOL_LOGGER.level == logging.NOTSET:
            # The pool logs every attempt to connect; an outage is reported by `PostgresDatabase` instead.
            _POOL_LOGGER.setLevel(logging.ERROR)
        await pool.open()
    except psycopg.Error as error:
        raise build_failure(error, address.shown) from error
    return PostgresDatabase(address, pool, options)


_CONNECTION_OPTIONS: dict[str, Any] = {
    # Otherwise psycopg opens a transaction with the first SELECT and leaves it open.
    "autocommit": True,
    "connect_timeout": _CONNECT_TIMEOUT_SECONDS,
    "fallback_application_name": "metier",
}


async def connect(address: Address) -> psycopg.AsyncConnection[TupleRow]:
    """Open a connection outside the pool."""
    connection = await psycopg.AsyncConnection.connect(address.conninfo, **_CONNECTION_OPTIONS)
    try:
        await _configure(connection)
    except BaseException:
        # Canceled, for example because the store is being closed. Only the garbage collector would close it otherwise.
        await connection.close()
        raise
    return connection


async def _configure(connection: Connection) -> None:
    await connection.execute("SET TIME ZONE 'UTC'")


async def fetch_one(connection: Connection, query: LiteralString, values: tuple[object, ...] = ()) -> TupleRow | None:
    return await (await connection.execute(query, values)).fetchone()


async def fetch_all(connection: Connection, query: LiteralString, values: tuple[object, ...] = ()) -> list[TupleRow]:
    return await (await connection.execute(query, values)).fetchall()


_HEALTH_CONNECT_TIMEOUT_SECONDS = 5


def check_server(variable: str, environ: Mapping[str, str], run_ids: Sequence[str]) -> ServerHealth | None:
    """Check the server. Return None if it doesn't answer, or has no tables yet."""
    try:
        address = read_address(variable, environ)
        # `closing`, because a connection's own context manager would commit a transaction first.
        with closing(psycopg.connect(address.conninfo, connect_timeout=_HEALTH_CONNECT_TIMEOUT_SECONDS)) as connection:
            started = time.time()
            row = connection.execute("SELECT extract(epoch FROM clock_timestamp())::float8").fetchone()
            ended = time.time()
            known = connection.execute(
                "SELECT run_id FROM agent_runs WHERE run_id = ANY(%s)", ([encode_text(each) for each in run_ids],)
            )
            # The server read its clock about halfway between the two times.
            return ServerHealth(
                seconds_ahead=float(row[0]) - (started + ended) / 2 if row else 0.0,
                error_seconds=(ended - started) / 2,
                known=frozenset(decode_text(str(run_id)) for (run_id,) in known),
            )
    except (psycopg.Error, StoreUnavailable):
        return None
