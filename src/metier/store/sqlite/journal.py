"""The journal in SQLite and the blobs that its entries name.

An entry has an exact position and a checksum. A blob lies under its SHA-256 in parts of 1 MiB, so that a large one
never holds up the database. Everything runs inside the caller's transaction.
"""

import hashlib
import io
import json
import sqlite3
from collections.abc import Sequence
from functools import partial

from anyio.lowlevel import checkpoint

from metier.ids import Clock
from metier.store.base import StoredEntry, build_damaged, build_misplaced, checksum_of, find_digests
from metier.store.failures import BlobUnknown, StoreDamaged
from metier.store.sqlite.database import Database


def insert_entries(connection: sqlite3.Connection, run_id: str, entries: Sequence[StoredEntry], *, last: int) -> None:
    """Behind the entry `last`, with which the journal ends.

    Raises `SeqTaken` when the journal already has an entry there, `StoreDamaged` when one before it is missing.
    """
    if entries and entries[0].seq != last + 1:
        raise build_misplaced(run_id, entries[0].seq, last=last)
    for entry in entries:
        connection.execute(
            "INSERT INTO journal (run_id, seq, kind, data, checksum) VALUES (?, ?, ?, ?, ?)",
            (run_id, entry.seq, entry.kind, entry.data, checksum_of(run_id, entry)),
        )
        name_blobs(connection, run_id, entry.data)


def find_entries(connection: sqlite3.Connection, run_id: str, *, after: int, limit: int) -> list[StoredEntry]:
    """Raises `StoreDamaged` for an entry that is not what was written, or is missing."""
    entries: list[StoredEntry] = []
    expected = after
    for seq, kind, data, checksum in connection.execute(
        "SELECT seq, kind, data, checksum FROM journal WHERE run_id = ? AND seq > ? ORDER BY seq LIMIT ?",
        (run_id, after, limit),
    ):
        entry = StoredEntry(seq, kind, data)
        expected += 1
        if seq != expected:
            raise build_damaged(run_id, expected, "is missing")
        if checksum != checksum_of(run_id, entry):
            raise build_damaged(run_id, seq, "is not what was written")
        entries.append(entry)
    return entries


def has_entries(connection: sqlite3.Connection, run_id: str, entries: Sequence[StoredEntry]) -> bool:
    """Are these very entries there?"""
    if not entries:
        return True
    return find_entries(connection, run_id, after=entries[0].seq - 1, limit=len(entries)) == list(entries)


def name_blobs(connection: sqlite3.Connection, run_id: str, data: bytes) -> None:
    """Note which blobs these bytes name: every run of exactly 64 hexadecimal digits that is the digest of a blob."""
    for digest in find_digests(data):
        connection.execute(
            "INSERT OR IGNORE INTO blob_names (run_id, digest) SELECT ?, digest FROM blobs WHERE digest = ?",
            (run_id, digest),
        )


def find_last(connection: sqlite3.Connection, run_id: str) -> int:
    """The number of the last entry; 0 where there is none."""
    query = "SELECT coalesce(max(seq), 0) FROM journal WHERE run_id = ?"
    return int(connection.execute(query, (run_id,)).fetchone()[0])


PART_SIZE = 1024 * 1024
_SMALL = 64 * 1024
"""Hashed and written on the spot; larger ones in a thread."""
_SWEPT_AT_ONCE = 500
_IS_UNNAMED = "put_at < ? AND NOT EXISTS (SELECT 1 FROM blob_names WHERE blob_names.digest = blobs.digest)"


class Blobs:
    def __init__(self, database: Database, clock: Clock, *, grace_seconds: float) -> None:
        self._database = database
        self._clock = clock
        self._grace_seconds = grace_seconds

    async def put(self, data: bytes) -> str:
        digest = await self._hash(data)
        if await self._database.read(lambda inside: self._is_fresh(inside, digest)):
            return digest
        if len(data) <= _SMALL:
            await self._database.write(partial(self._put_whole, digest, data))
        else:
            await self._put_in_parts(digest, data)
        return digest

    async def get(self, digest: str) -> bytes:
        whole, parts = io.BytesIO(), 0  # not a list of parts: joining 100 MB would stop every other task
        while (part := await self._database.read(partial(_find_part, digest, parts))) is not None:
            whole.write(part)
            parts += 1
            if len(part) > _SMALL:
                await checkpoint()
        data = whole.getvalue()
        if parts and await self._hash(data) == digest:
            return data
        raise await self._database.read(partial(_build_failure, digest))

    async def _hash(self, data: bytes) -> str:
        if len(data) <= _SMALL:
            return hashlib.sha256(data).hexdigest()
        return await self._database.in_thread(lambda: hashlib.sha256(data).hexdigest())

    async def sweep(self) -> None:
        """Remove what no run names and no process put of late: small ones together, large ones alone."""
        batch: list[str] = []
        size = 0
        for digest, bytes_ in await self._database.read(self._find_unnamed):
            if batch and (len(batch) >= _SWEPT_AT_ONCE or size + bytes_ > PART_SIZE):
                await self._database.write(partial(self._remove_unnamed, batch), slow=True)
                batch, size = [], 0
            batch.append(digest)
            size += bytes_
        if batch:
            await self._database.write(partial(self._remove_unnamed, batch), slow=True)

    def _is_fresh(self, connection: sqlite3.Connection, digest: str) -> bool:
        """It is there, and will be for long enough to be named."""
        row = connection.execute("SELECT put_at, is_whole FROM blobs WHERE digest = ?", (digest,)).fetchone()
        return row is not None and bool(row[1]) and row[0] > self._now() - self._grace_seconds / 2

    def _put_whole(self, digest: str, data: bytes, connection: sqlite3.Connection) -> None:
        self._put_row(digest, len(data), connection, is_whole=True)
        connection.execute("INSERT OR IGNORE INTO blob_parts VALUES (?, 0, ?)", (digest, data))

    async def _put_in_parts(self, digest: str, data: bytes) -> None:
        whole = await self._database.write(partial(self._put_row, digest, len(data), is_whole=False))
        if whole:
            return
        for number, start in enumerate(range(0, len(data), PART_SIZE)):
            row = (digest, number, data[start : start + PART_SIZE])
            await self._database.write(partial(_put_part, row), slow=True)
        await self._database.write(partial(self._put_row, digest, len(data), is_whole=True))

    def _put_row(self, digest: str, size: int, connection: sqlite3.Connection, *, is_whole: bool) -> bool:
        """Note that the blob was put now; a blob that is whole stays so. Returns whether it is."""
        connection.execute(
            "INSERT INTO blobs (digest, size, put_at, is_whole) VALUES (?, ?, ?, ?) ON CONFLICT (digest) DO UPDATE"
            " SET put_at = max(put_at, excluded.put_at), is_whole = max(is_whole, excluded.is_whole)",
            (digest, size, self._now(), int(is_whole)),
        )
        return bool(connection.execute("SELECT is_whole FROM blobs WHERE digest = ?", (digest,)).fetchone()[0])

    def _find_unnamed(self, connection: sqlite3.Connection) -> list[tuple[str, int]]:
        """Digests with their sizes."""
        rows = connection.execute(f"SELECT digest, size FROM blobs WHERE {_IS_UNNAMED}", (self._oldest_kept(),))  # noqa: S608 (fixed text)
        return [(str(digest), int(size)) for digest, size in rows]

    def _remove_unnamed(self, digests: list[str], connection: sqlite3.Connection) -> None:
        """Looks again: each may have been put or named since it was found."""
        found = connection.execute(
            f"SELECT digest FROM blobs WHERE digest IN (SELECT value FROM json_each(?)) AND {_IS_UNNAMED}",  # noqa: S608 (fixed text)
            (json.dumps(digests), self._oldest_kept()),
        )
        gone = json.dumps([digest for (digest,) in found])
        for table in ("blob_parts", "blobs"):
            connection.execute(f"DELETE FROM {table} WHERE digest IN (SELECT value FROM json_each(?))", (gone,))  # noqa: S608 (fixed names)

    def _oldest_kept(self) -> float:
        return self._now() - self._grace_seconds

    def _now(self) -> float:
        return self._clock.now().timestamp()


def _put_part(row: tuple[str, int, bytes], connection: sqlite3.Connection) -> None:
    connection.execute("INSERT OR IGNORE INTO blob_parts VALUES (?, ?, ?)", row)


def _find_part(digest: str, number: int, connection: sqlite3.Connection) -> bytes | None:
    query = "SELECT data FROM blob_parts JOIN blobs USING (digest) WHERE digest = ? AND part = ? AND is_whole"
    row = connection.execute(query, (digest, number)).fetchone()
    return None if row is None else bytes(row[0])


def _build_failure(digest: str, connection: sqlite3.Connection) -> BlobUnknown | StoreDamaged:
    if connection.execute("SELECT 1 FROM blobs WHERE digest = ? AND is_whole", (digest,)).fetchone() is None:
        return BlobUnknown(
            f"There are no bytes with the digest {digest!r}", hint="The run that named them may be deleted"
        )
    return StoreDamaged(
        f"The bytes with the digest {digest!r} are not those that were put",
        hint="Restore the run store from a backup",
    )
