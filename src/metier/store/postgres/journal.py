"""The journal in PostgreSQL, the wait for its new entries, and the blobs that entries name.

An append is one statement, so one round trip.
"""

import asyncio
import contextlib
import hashlib
import io
from collections.abc import Awaitable, Callable, Sequence

import anyio
import anyio.lowlevel
import anyio.to_thread
import psycopg

from metier.store.base import Lease, StoredEntry, build_damaged, build_misplaced, checksum_of, find_digests
from metier.store.failures import BlobUnknown, StoreDamaged
from metier.store.postgres.database import Database, connect, decode_text, encode_text, fetch_all, fetch_one
from metier.store.postgres.leases import build_lost, check_fence
from metier.store.postgres.schema import Connection

CHANNEL = "agent_journal"

# FOR SHARE: a process that takes the lease over waits until this is committed, so its own reads see these entries.
# Notify only where a process listens: NOTIFY takes a lock that all commits of a database share.
_APPEND = (
    "WITH held AS (SELECT watched_until > clock_timestamp() AS is_watched FROM agent_leases"
    " WHERE run_id = %(run)s AND owner = %(owner)s AND token = %(token)s FOR SHARE),"
    " before AS (SELECT coalesce(max(seq), 0) AS last FROM agent_journal WHERE run_id = %(run)s),"
    " added AS (INSERT INTO agent_journal (run_id, seq, kind, data, checksum)"
    " SELECT %(run)s, * FROM unnest(%(seqs)s::bigint[], %(kinds)s::text[], %(datas)s::bytea[], %(checksums)s::bigint[])"
    " WHERE EXISTS (SELECT FROM held) AND (SELECT last FROM before) = %(first)s - 1 RETURNING 1)"
)
_NAME = (
    ", named AS (INSERT INTO agent_blob_names (run_id, digest) SELECT %(run)s, digest FROM agent_blobs"
    " WHERE digest = ANY(%(digests)s) AND EXISTS (SELECT FROM added) ON CONFLICT DO NOTHING)"
)
_OUTCOME = (
    " SELECT (SELECT count(*) FROM held), (SELECT last FROM before), (SELECT count(*) FROM added),"
    " (SELECT pg_notify('agent_journal', %(run)s) FROM held WHERE is_watched)::text"
)


async def append(connection: Connection, lease: Lease, entries: Sequence[StoredEntry]) -> None:
    """Raises `SeqTaken`, `LeaseLost`, or `StoreDamaged` when an entry before is missing.

    Entries that are there already, exactly these, are those of an attempt whose answer was lost.
    """
    if not entries:
        await check_fence(connection, lease)
        return
    first_seq = entries[0].seq
    digests = [digest for entry in entries for digest in find_digests(entry.data)]
    values = {
        "run": encode_text(lease.run_id),
        "owner": encode_text(lease.owner),
        "token": lease.token,
        "first": first_seq,
        "seqs": [entry.seq for entry in entries],
        "kinds": [encode_text(entry.kind) for entry in entries],
        "datas": [entry.data for entry in entries],
        "checksums": [checksum_of(lease.run_id, entry) for entry in entries],
        "digests": digests,
    }
    try:
        cursor = await connection.execute(_APPEND + _NAME + _OUTCOME if digests else _APPEND + _OUTCOME, values)
    except psycopg.errors.UniqueViolation as error:
        raise build_misplaced(lease.run_id, first_seq, last=await find_last(connection, lease.run_id)) from error
    row = await cursor.fetchone()
    assert row is not None, "a SELECT without FROM has one row"
    held, last, added = int(row[0]), int(row[1]), int(row[2])
    if not held:
        raise await build_lost(connection, lease)
    if added < len(entries):
        raise build_misplaced(lease.run_id, first_seq, last=last)


async def insert_first(connection: Connection, run_id: str, entries: Sequence[StoredEntry]) -> None:
    """The beginning of the journal of a run that the caller's transaction makes."""
    for entry in entries:
        await connection.execute(
            "INSERT INTO agent_journal (run_id, seq, kind, data, checksum) VALUES (%s, %s, %s, %s, %s)",
            (encode_text(run_id), entry.seq, encode_text(entry.kind), entry.data, checksum_of(run_id, entry)),
        )
        await name_blobs(connection, run_id, entry.data)


async def find_entries(connection: Connection, run_id: str, *, after: int, limit: int | None) -> list[StoredEntry]:
    """Raises `StoreDamaged` for an entry that is not what was written, or is missing."""
    entries: list[StoredEntry] = []
    expected = after
    for seq, kind, data, checksum in await fetch_all(
        connection,
        "SELECT seq, kind, data, checksum FROM agent_journal WHERE run_id = %s AND seq > %s ORDER BY seq LIMIT %s",
        (encode_text(run_id), after, limit),
    ):
        entry = StoredEntry(int(seq), decode_text(kind), bytes(data))
        expected += 1
        if entry.seq != expected:
            raise build_damaged(run_id, expected, "is missing")
        if checksum != checksum_of(run_id, entry):
            raise build_damaged(run_id, entry.seq, "is not what was written")
        entries.append(entry)
    return entries


async def has_entries(connection: Connection, run_id: str, entries: Sequence[StoredEntry]) -> bool:
    """Are these very entries there?"""
    found = await find_entries(connection, run_id, after=entries[0].seq - 1, limit=len(entries)) if entries else []
    return found == list(entries)


async def find_last(connection: Connection, run_id: str) -> int:
    query = "SELECT coalesce(max(seq), 0) FROM agent_journal WHERE run_id = %s"
    row = await fetch_one(connection, query, (encode_text(run_id),))
    return int(row[0]) if row else 0


async def name_blobs(connection: Connection, run_id: str, data: bytes) -> None:
    """Note which blobs these bytes name."""
    digests = list(find_digests(data))
    if digests:
        await connection.execute(
            "INSERT INTO agent_blob_names (run_id, digest) SELECT %s, digest FROM agent_blobs WHERE digest = ANY(%s)"
            " ON CONFLICT DO NOTHING",
            (encode_text(run_id), digests),
        )


LOOK_SECONDS = (0.05, 1.0)
"""How long a task that was told nothing waits before it looks by itself, the first time and later."""
_MARK_SECONDS = 30.0
_RECONNECT_SECONDS = 1.0


class Watcher:
    def __init__(self, database: Database, *, look_seconds: tuple[float, float] = LOOK_SECONDS) -> None:
        self._database = database
        self._look_seconds = look_seconds
        self._waiting: dict[str, set[anyio.Event]] = {}
        self._listener: asyncio.Task[None] | None = None

    async def wait(self, run_id: str, has_come: Callable[[], Awaitable[bool]]) -> None:
        """Return when `has_come` returns true. The caller bounds the wait by cancelling it."""
        if self._listener is None or self._listener.done():
            self._listener = asyncio.create_task(self._listen(), name="listen for journal entries")
        pause, marked_at = self._look_seconds[0], -_MARK_SECONDS
        while True:
            told = anyio.Event()
            self._waiting.setdefault(run_id, set()).add(told)
            try:
                if anyio.current_time() - marked_at > _MARK_SECONDS / 2:
                    await self._mark(run_id)
                    marked_at = anyio.current_time()
                if await has_come():
                    return
                with anyio.move_on_after(pause):
                    await told.wait()
            finally:
                self._forget(run_id, told)
            pause = min(self._look_seconds[1], pause * 2)

    async def close(self) -> None:
        if self._listener is not None:
            self._listener.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._listener
            self._listener = None

    async def _mark(self, run_id: str) -> None:
        async def work(connection: Connection) -> None:
            await connection.execute(
                "UPDATE agent_leases SET watched_until = clock_timestamp() + make_interval(secs => %s)"
                " WHERE run_id = %s",
                (_MARK_SECONDS, encode_text(run_id)),
            )

        await self._database.run(work)

    def _forget(self, run_id: str, told: anyio.Event) -> None:
        others = self._waiting.get(run_id, set())
        others.discard(told)
        if not others:
            self._waiting.pop(run_id, None)

    async def _listen(self) -> None:
        """For ever: a connection that breaks is made again."""
        while True:
            with contextlib.suppress(psycopg.Error):
                async with await connect(self._database.address) as connection:
                    await connection.execute(f"LISTEN {CHANNEL}")
                    # Closed here: where the server went away, the generator would be left for the collector.
                    async with contextlib.aclosing(connection.notifies()) as notifications:
                        async for notification in notifications:
                            for told in self._waiting.get(decode_text(notification.payload), ()):
                                told.set()
            await asyncio.sleep(_RECONNECT_SECONDS)


PART_SIZE = 1024 * 1024
_SMALL = 64 * 1024
"""Hashed on the spot; larger ones in a thread."""
_SWEPT_AT_ONCE = 500


class Blobs:
    def __init__(self, database: Database, *, grace_seconds: float) -> None:
        self._database = database
        self._grace_seconds = grace_seconds

    async def put(self, data: bytes) -> str:
        digest = await _hash(data)
        if not await self._database.run(lambda connection: self._is_fresh(connection, digest)):
            await self._database.transact(lambda connection: _put(connection, digest, data))
        return digest

    async def get(self, digest: str) -> bytes:
        whole, parts = io.BytesIO(), 0

        async def find_part(connection: Connection) -> bytes | None:
            query = "SELECT data FROM agent_blob_parts WHERE digest = %s AND part = %s"
            row = await fetch_one(connection, query, (digest, parts))
            return None if row is None else bytes(row[0])

        while (part := await self._database.run(find_part)) is not None:
            whole.write(part)
            parts += 1
            if len(part) < PART_SIZE:
                break
        data = whole.getvalue()
        if parts and await _hash(data) == digest:
            return data
        raise await self._database.run(lambda connection: _build_failure(connection, digest))

    async def sweep(self) -> None:
        """Remove what no run names and no process put of late, page by page."""
        while await self._database.run(self._remove_unnamed) == _SWEPT_AT_ONCE:
            await anyio.lowlevel.checkpoint()

    async def _is_fresh(self, connection: Connection, digest: str) -> bool:
        """It is there, and will be for long enough to be named."""
        query = "SELECT 1 FROM agent_blobs WHERE digest = %s AND put_at > clock_timestamp() - make_interval(secs => %s)"
        return await fetch_one(connection, query, (digest, self._grace_seconds / 2)) is not None

    async def _remove_unnamed(self, connection: Connection) -> int:
        """One statement: a blob that is put or named meanwhile is seen by its conditions. Returns how many went."""
        cursor = await connection.execute(
            "DELETE FROM agent_blobs WHERE digest IN (SELECT digest FROM agent_blobs AS blob"
            " WHERE put_at <= clock_timestamp() - make_interval(secs => %s)"
            " AND NOT EXISTS (SELECT FROM agent_blob_names AS name WHERE name.digest = blob.digest) LIMIT %s)"
            " AND put_at <= clock_timestamp() - make_interval(secs => %s)"
            " AND NOT EXISTS (SELECT FROM agent_blob_names AS name WHERE name.digest = agent_blobs.digest)",
            (self._grace_seconds, _SWEPT_AT_ONCE, self._grace_seconds),
        )
        return cursor.rowcount


async def _put(connection: Connection, digest: str, data: bytes) -> None:
    """Note that the blob was put now; its parts are there whole or not at all."""
    await connection.execute(
        "INSERT INTO agent_blobs (digest, size, put_at) VALUES (%s, %s, clock_timestamp())"
        " ON CONFLICT (digest) DO UPDATE SET put_at = excluded.put_at",
        (digest, len(data)),
    )
    if await fetch_one(connection, "SELECT 1 FROM agent_blob_parts WHERE digest = %s LIMIT 1", (digest,)) is not None:
        return
    for number, start in enumerate(range(0, max(1, len(data)), PART_SIZE)):
        await connection.execute(
            "INSERT INTO agent_blob_parts (digest, part, data) VALUES (%s, %s, %s)",
            (digest, number, data[start : start + PART_SIZE]),
        )


async def _hash(data: bytes) -> str:
    if len(data) <= _SMALL:
        return hashlib.sha256(data).hexdigest()
    return await anyio.to_thread.run_sync(lambda: hashlib.sha256(data).hexdigest())


async def _build_failure(connection: Connection, digest: str) -> BlobUnknown | StoreDamaged:
    if await fetch_one(connection, "SELECT 1 FROM agent_blobs WHERE digest = %s", (digest,)) is None:
        return BlobUnknown(
            f"There are no bytes with the digest {digest!r}", hint="The run that named them may be deleted"
        )
    return StoreDamaged(
        f"The bytes with the digest {digest!r} are not those that were put",
        hint="Restore the run store from a backup",
    )
