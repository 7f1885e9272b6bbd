"""The journal in SQLite: entries at exact places, each with a checksum. All inside the caller's transaction."""

import sqlite3
import zlib
from collections.abc import Sequence

from metier.store.base import StoredEntry
from metier.store.failures import SeqTaken, StoreDamaged

_HEX_MASK = bytes(49 if chr(value) in "0123456789abcdef" else 32 for value in range(256))
_NOT_HEX = bytes(value if chr(value) in "0123456789abcdef" else 32 for value in range(256))
_DIGEST_LENGTH = 64
_ENOUGH_DIGITS = b"1" * _DIGEST_LENGTH


def insert_entries(connection: sqlite3.Connection, run_id: str, entries: Sequence[StoredEntry]) -> None:
    """Raises `SeqTaken` when the journal already has an entry there, `StoreDamaged` when one before it is missing."""
    if entries:
        _check_place(connection, run_id, entries[0].seq)
    for entry in entries:
        connection.execute(
            "INSERT INTO journal (run_id, seq, kind, data, checksum) VALUES (?, ?, ?, ?, ?)",
            (run_id, entry.seq, entry.kind, entry.data, _checksum(run_id, entry)),
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
            raise _damaged(run_id, expected, "is missing")
        if checksum != _checksum(run_id, entry):
            raise _damaged(run_id, seq, "is not what was written")
        entries.append(entry)
    return entries


def has_entries(connection: sqlite3.Connection, run_id: str, entries: Sequence[StoredEntry]) -> bool:
    """Are these very entries there?"""
    if not entries:
        return True
    return find_entries(connection, run_id, after=entries[0].seq - 1, limit=len(entries)) == list(entries)


def name_blobs(connection: sqlite3.Connection, run_id: str, data: bytes) -> None:
    """Note which blobs these bytes name: every run of exactly 64 hexadecimal digits that is the digest of a blob."""
    if _ENOUGH_DIGITS not in data.translate(_HEX_MASK):  # most entries name none, and this is cheap
        return
    for word in set(data.translate(_NOT_HEX).split()):
        if len(word) == _DIGEST_LENGTH:
            connection.execute(
                "INSERT OR IGNORE INTO blob_names (run_id, digest) SELECT ?, digest FROM blobs WHERE digest = ?",
                (run_id, word.decode("ascii")),
            )


def _check_place(connection: sqlite3.Connection, run_id: str, first_seq: int) -> None:
    query = "SELECT coalesce(max(seq), 0) FROM journal WHERE run_id = ?"
    last = int(connection.execute(query, (run_id,)).fetchone()[0])
    if first_seq <= last:
        raise SeqTaken(
            f"Run {run_id!r} already has an entry {first_seq}; its journal ends at {last}, and nothing was written",
            hint="Read the journal again: somebody else went on with this run",
        )
    if first_seq > last + 1:
        raise _damaged(run_id, last + 1, f"is missing, so entry {first_seq} was not written")


def _checksum(run_id: str, entry: StoredEntry) -> int:
    return zlib.crc32(entry.data, zlib.crc32(f"{run_id}/{entry.seq}/{entry.kind}".encode()))


def _damaged(run_id: str, seq: int, what: str) -> StoreDamaged:
    return StoreDamaged(
        f"Entry {seq} of run {run_id!r} {what}",
        hint="Restore the run store from a backup; this run cannot go on from here",
    )
