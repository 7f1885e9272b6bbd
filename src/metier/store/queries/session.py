"""One interface for both databases, with the same statements, values and rows.

A statement is written once, with bare table names and `?` for values. `Dialect` has the few expressions that differ;
`translate_for_sqlite` and `translate_for_postgres` rewrite the rest.
"""

import re
from collections.abc import Callable, Coroutine, Sequence
from datetime import UTC, datetime
from functools import lru_cache
from typing import Any, Literal, Protocol

from msgspec import Struct, ValidationError, convert

from metier.store.failures import StoreDamaged

type SqlValue = str | int | float | bytes | datetime | Sequence[str] | None
type SqlRow = tuple[Any, ...]

NO_LIMIT = 2**62
"""SQLite has no `LIMIT NULL`, and PostgreSQL no `LIMIT -1`."""


class RowExists(Exception):
    """A unique index already has this row. Only raised for statements without an `ON CONFLICT` clause."""


class Dialect(Struct, frozen=True, kw_only=True):
    """SQL expressions that differ between the databases.

    SQLite calls Python functions for clocks and leases (see `sqlite.connection`), because the processes of one machine
    share a clock that cannot be set. Processes on several machines only share the clock of the server.
    """

    name: Literal["sqlite", "postgres"]
    seconds_from_now: str
    """A point in time. The placeholder is the number of seconds, 0 for the current time, or NULL for never."""
    blob_time_from_now: str
    """The same in the format of `blobs.put_at`."""
    lease_end: str
    """The end of a lease that lasts for the number of seconds in the placeholder."""
    lease_seconds_left: str
    """The number of seconds until the lease of the row ends; 0 or less if it has ended."""
    lease_is_over: str
    """True if any process can acquire the lease of the row."""
    next_token: str
    """A statement that returns the next fencing token. Tokens are never reused, even after a deletion."""
    is_one_of: str
    """Follows an expression and compares it with the list in the placeholder."""
    is_true: str
    """Follows a boolean column. Must match the text of partial indexes, because SQLite only uses them then."""
    is_false: str
    unindexed: str
    """Precedes a column whose index must not be used. SQLite has no statistics and would prefer it, then sort."""
    hour_of_creation: str
    hour_of_update: str


SQLITE = Dialect(
    name="sqlite",
    seconds_from_now="time_from_now(?)",
    blob_time_from_now="unix_time_from_now(?)",
    lease_end="uptime_from_now(?)",
    lease_seconds_left="lease_seconds_left(boot_id, until)",
    lease_is_over="lease_is_over(owner, boot_id, until, process)",
    next_token="UPDATE fencing SET last_token = last_token + 1 RETURNING last_token",  # noqa: S106 (no password)
    is_one_of="IN (SELECT value FROM json_each(?))",
    is_true="= 1",
    is_false="= 0",
    unindexed="+",
    hour_of_creation="substr(created_at, 1, 13)",
    hour_of_update="substr(updated_at, 1, 13)",
)

POSTGRES = Dialect(
    name="postgres",
    seconds_from_now="clock_timestamp() + make_interval(secs => ?)",
    blob_time_from_now="clock_timestamp() + make_interval(secs => ?)",
    lease_end="clock_timestamp() + make_interval(secs => ?)",
    lease_seconds_left="CAST(coalesce(extract(epoch FROM until - clock_timestamp()), 0) AS double precision)",
    # Unlike SQLite's, it can't check the driver's process, which runs on another machine than the server.
    lease_is_over="(owner = '' OR until <= clock_timestamp())",
    next_token="SELECT nextval('agent_fencing')",  # noqa: S106 (no password)
    is_one_of="= ANY(?)",
    is_true="",
    is_false="= FALSE",
    unindexed="",
    hour_of_creation="to_char(created_at AT TIME ZONE 'UTC', 'YYYY-MM-DD\"T\"HH24')",
    hour_of_update="to_char(updated_at AT TIME ZONE 'UTC', 'YYYY-MM-DD\"T\"HH24')",
)


class Session(Protocol):
    """A connection. It is in a transaction if the query runs in `Database.write`."""

    @property
    def dialect(self) -> Dialect: ...

    async def execute(self, statement: str, values: Sequence[SqlValue] = ()) -> int:
        """Return the number of changed rows. Raises `RowExists`."""
        ...

    async def fetch_one(self, query: str, values: Sequence[SqlValue] = ()) -> SqlRow | None: ...

    async def fetch_all(self, query: str, values: Sequence[SqlValue] = ()) -> list[SqlRow]: ...


type Work[T] = Callable[[Session], Coroutine[Any, Any, T]]
"""A function that runs queries. It must only await its session, because SQLite runs it without an event loop."""


class Database(Protocol):
    """Connections to one database. It handles retries and durability."""

    async def read[T](self, work: Work[T]) -> T:
        """Run queries that change nothing."""
        ...

    async def write[T](
        self, work: Work[T], *, durable: bool = False, slow: bool = False, repeatable: bool = False
    ) -> T:
        """Run a change in one transaction, exactly once, even if the connection is lost during the commit.

        `slow` prevents a long change from blocking the event loop. A `repeatable` change may run twice, so its commit
        doesn't have to be recorded.
        """
        ...

    async def append(self, work: Work[None], has_landed: Work[bool], *, durable: bool) -> None:
        """Append entries. If the connection is lost, `has_landed` checks whether they were committed."""
        ...

    async def in_thread[T](self, work: Callable[[], T]) -> T:
        """Run a long computation that does not use the database."""
        ...

    async def close(self) -> None: ...


_TABLES = (
    "approval_attempts|approvals|blob_names|blob_parts|blobs|context_state|conversation_events|journal|leases|messages"
    "|outbox|pocket_facts|receivers|run_usage|run_words|runs|schedule_firings|schedule_marks|schedules|usage_totals"
)
_TABLE_REFERENCE = re.compile(rf"\b(FROM|INTO|JOIN|UPDATE) ({_TABLES})\b")
_POSTGRES_ONLY = re.compile(r" FOR (UPDATE|SHARE)( OF \w+)?( SKIP LOCKED)?| COLLATE \"C\"")
_SQLITE_ONLY = re.compile(r" INDEXED BY \w+")


# Bounded: lists of entries and searches give statements of many shapes.
@lru_cache(maxsize=1024)
def translate_for_sqlite(statement: str) -> str:
    """Remove locks, because SQLite has only one writer, and collations, because SQLite compares bytes by default."""
    return _POSTGRES_ONLY.sub("", statement)


@lru_cache(maxsize=1024)
def translate_for_postgres(statement: str) -> bytes:
    """Add a prefix to tables, because programs share a server, and use the driver's placeholder."""
    named = _TABLE_REFERENCE.sub(r"\1 agent_\2", _SQLITE_ONLY.sub("", statement))
    return named.replace("%", "%%").replace("?", "%s").encode()


def render_time(moment: datetime) -> str:
    """Format a time for SQLite, always with microseconds, so that texts sort like times."""
    return moment.astimezone(UTC).isoformat(timespec="microseconds")


def parse_time(value: str | datetime) -> datetime:
    """Read a time from a row as UTC. SQLite stores text; PostgreSQL returns the time zone of the session."""
    if isinstance(value, datetime):
        return value.astimezone(UTC)
    try:
        return datetime.fromisoformat(value)
    except ValueError as error:
        raise StoreDamaged(
            f"The run store has {value!r} instead of a time", hint="Restore `runs/state.db` from a backup"
        ) from error


def read_row[T](kind: type[T], columns: str, row: Sequence[Any]) -> T:
    """Build a value from a row, whose columns have the names of its fields. Raises `StoreDamaged`."""
    # A session that lost its settings, for example behind a pooler, returns times in another time zone.
    values = [value.astimezone(UTC) if isinstance(value, datetime) else value for value in row]
    try:
        # Not strict, because SQLite has neither times nor booleans.
        return convert(dict(zip(columns.split(", "), values, strict=True)), kind, strict=False)
    except ValidationError as error:
        raise StoreDamaged(
            f"The run store has a row that is no {kind.__name__}: {error}",
            hint="Restore `runs/state.db` from a backup",
        ) from error


def parse_optional_time(value: str | datetime | None) -> datetime | None:
    return parse_time(value) if value else None
