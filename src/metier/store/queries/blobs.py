"""Blobs: bytes under their SHA-256, in parts of 1 MiB so that a large one never blocks the database.

A blob is kept as long as a run names it. Names are found in the stored bytes: 64 hexadecimal digits in a journal entry,
in an approval, or in the reason of a new run.
"""

import hashlib
import io

from anyio.lowlevel import checkpoint

from metier.store.failures import BlobUnknown, StoreDamaged
from metier.store.queries.session import Database, Session

PART_SIZE = 1024 * 1024
_SMALL = 64 * 1024
"""Blobs up to this size are hashed in the event loop and written in one transaction."""
_SWEPT_AT_ONCE = 500
_IS_UNNAMED = "NOT EXISTS (SELECT 1 FROM blob_names AS name WHERE name.digest = blob.digest)"


class Blobs:
    def __init__(self, database: Database, *, grace_seconds: float) -> None:
        self._database = database
        self._grace_seconds = grace_seconds
        """Minimum age of an unnamed blob before it is deleted, because the entry that names it is written later."""

    async def put(self, data: bytes) -> str:
        digest = await self._hash(data)
        if await self._database.read(lambda db: self._is_fresh(db, digest)):
            return digest
        if len(data) <= _SMALL:
            # Not synced: syncing the entry that names the blob also syncs everything written before it.
            await self._database.write(lambda db: _put_whole(db, digest, data), repeatable=True)
        else:
            await self._put_in_parts(digest, data)
        return digest

    async def get(self, digest: str) -> bytes:
        """Return stored bytes. Raises `BlobUnknown`, or `StoreDamaged` if the bytes have changed."""
        whole, parts = io.BytesIO(), 0  # not a list of parts: joining 100 MB would block all other tasks
        while (part := await self._find_part(digest, parts)) is not None:
            whole.write(part)
            parts += 1
            if len(part) < PART_SIZE:
                break
            await checkpoint()
        data = whole.getvalue()
        if parts and await self._hash(data) == digest:
            return data
        raise await self._database.read(lambda db: _build_failure(db, digest))

    async def sweep(self) -> None:
        """Delete old blobs that no run names: small ones together, large ones in a transaction of their own."""
        batch: list[str] = []
        size = 0
        for digest, bytes_ in await self._database.read(self._list_unnamed):
            if batch and (len(batch) >= _SWEPT_AT_ONCE or size + bytes_ > PART_SIZE):
                await self._remove(batch)
                batch, size = [], 0
            batch.append(digest)
            size += bytes_
        if batch:
            await self._remove(batch)

    async def _put_in_parts(self, digest: str, data: bytes) -> None:
        # The row comes first because the parts refer to it. `is_whole` is set last, so that an incomplete blob is never
        # read if the process dies in between.
        is_whole = await self._database.write(
            lambda db: _put_row(db, digest, len(data), is_whole=False), repeatable=True
        )
        if is_whole:
            return
        for part, start in enumerate(range(0, len(data), PART_SIZE)):
            chunk = data[start : start + PART_SIZE]
            await self._database.write(
                lambda db, part=part, chunk=chunk: _put_part(db, digest, chunk, part=part), slow=True, repeatable=True
            )
        await self._database.write(lambda db: _put_row(db, digest, len(data), is_whole=True), repeatable=True)

    async def _find_part(self, digest: str, part: int) -> bytes | None:
        async def query(db: Session) -> bytes | None:
            row = await db.fetch_one(
                "SELECT data FROM blob_parts AS part JOIN blobs AS blob ON blob.digest = part.digest"
                f" WHERE part.digest = ? AND part = ? AND is_whole {db.dialect.is_true}",
                (digest, part),
            )
            return None if row is None else bytes(row[0])

        return await self._database.read(query)

    async def _remove(self, digests: list[str]) -> None:
        async def change(db: Session) -> None:
            # The conditions are checked again: each blob may have been put or named since it was listed.
            removed = await db.fetch_all(
                f"DELETE FROM blobs AS blob WHERE digest {db.dialect.is_one_of}"
                f" AND put_at < {db.dialect.blob_time_from_now} AND {_IS_UNNAMED} RETURNING digest",
                (digests, -self._grace_seconds),
            )
            await db.execute(
                f"DELETE FROM blob_parts WHERE digest {db.dialect.is_one_of}",
                ([digest for (digest,) in removed],),
            )

        await self._database.write(change, slow=True, repeatable=True)

    async def _list_unnamed(self, db: Session) -> list[tuple[str, int]]:
        rows = await db.fetch_all(
            f"SELECT digest, size FROM blobs AS blob WHERE put_at < {db.dialect.blob_time_from_now} AND {_IS_UNNAMED}",
            (-self._grace_seconds,),
        )
        return [(str(digest), int(size)) for digest, size in rows]

    async def _is_fresh(self, db: Session, digest: str) -> bool:
        """Return True if the blob exists and won't be swept before an entry can name it."""
        # Half of the grace period is left for writing that entry.
        row = await db.fetch_one(
            f"SELECT 1 FROM blobs WHERE digest = ? AND is_whole {db.dialect.is_true}"
            f" AND put_at > {db.dialect.blob_time_from_now}",
            (digest, -self._grace_seconds / 2),
        )
        return row is not None

    async def _hash(self, data: bytes) -> str:
        if len(data) <= _SMALL:
            return hashlib.sha256(data).hexdigest()
        return await self._database.in_thread(lambda: hashlib.sha256(data).hexdigest())


async def _put_whole(db: Session, digest: str, data: bytes) -> None:
    await _put_row(db, digest, len(data), is_whole=True)
    await _put_part(db, digest, data, part=0)


async def _put_row(db: Session, digest: str, size: int, *, is_whole: bool) -> bool:
    """Record that the blob was put now. Return True if all of its parts are stored. A whole blob stays whole."""
    row = await db.fetch_one(
        "INSERT INTO blobs AS known (digest, size, put_at, is_whole)"
        f" VALUES (?, ?, {db.dialect.blob_time_from_now}, ?) ON CONFLICT (digest) DO UPDATE"
        " SET put_at = excluded.put_at, is_whole = known.is_whole OR excluded.is_whole RETURNING is_whole",
        (digest, size, 0, is_whole),
    )
    return row is not None and bool(row[0])


async def _put_part(db: Session, digest: str, data: bytes, *, part: int) -> None:
    await db.execute(
        # Another process may be writing the same blob: equal digests have equal parts.
        "INSERT INTO blob_parts (digest, part, data) VALUES (?, ?, ?) ON CONFLICT DO NOTHING",
        (digest, part, data),
    )


async def _build_failure(db: Session, digest: str) -> BlobUnknown | StoreDamaged:
    query = f"SELECT 1 FROM blobs WHERE digest = ? AND is_whole {db.dialect.is_true}"
    if await db.fetch_one(query, (digest,)) is None:
        return BlobUnknown(
            f"There are no bytes with the digest {digest!r}", hint="The run that named them may be deleted"
        )
    return StoreDamaged(
        f"The bytes with the digest {digest!r} are not those that were put",
        hint="Restore the run store from a backup",
    )
