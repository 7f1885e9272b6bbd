"""The journal in SQLite: entries at exact places, each with a checksum. All inside the caller's transaction."""

import sqlite3
from collections.abc import Sequence

from metier.store.base import Lease, StoredEntry
from metier.store.marks import build_damaged, build_misplaced, checksum_of, find_digests

_INSERT_BEHIND = (
    "INSERT INTO journal (run_id, seq, kind, data, checksum)"
    " WITH new (seq, kind, data, checksum) AS (VALUES {})"
    " SELECT leases.run_id, new.seq, new.kind, new.data, new.checksum FROM leases, new"
    " WHERE leases.run_id = ? AND leases.owner = ? AND leases.token = ?"
    " AND (SELECT coalesce(max(seq), 0) FROM journal WHERE run_id = ?) = ?"
)


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


def insert_behind(connection: sqlite3.Connection, lease: Lease, entries: Sequence[StoredEntry]) -> bool:
    """The same in one statement, for entries that name no blob: False, and nothing written, where it does not fit.

    It does not where the lease is lost, or the journal does not end right before the first entry.
    """
    values: list[object] = []
    for entry in entries:
        values += (entry.seq, entry.kind, entry.data, checksum_of(lease.run_id, entry))
    values += (lease.run_id, lease.owner, lease.token, lease.run_id, entries[0].seq - 1)
    return connection.execute(_INSERT_BEHIND.format(", ".join(["(?, ?, ?, ?)"] * len(entries))), values).rowcount > 0


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
