"""Blobs in PostgreSQL: bytes under their SHA-256, in parts of 1 MiB. See `sqlite.blobs` for when they go."""

import hashlib
import io

import anyio.lowlevel
import anyio.to_thread

from metier.store.failures import BlobUnknown, StoreDamaged
from metier.store.postgres.database import Database, fetch_one
from metier.store.postgres.schema import Connection

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
