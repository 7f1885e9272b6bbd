"""The journal in PostgreSQL. An append is one statement, so one way to the server and back."""

from collections.abc import Sequence

import psycopg

from metier.store.base import Lease, StoredEntry
from metier.store.marks import build_damaged, build_misplaced, checksum_of, find_digests
from metier.store.postgres.database import fetch_all, fetch_one
from metier.store.postgres.leases import build_lost, check_fence
from metier.store.postgres.schema import Connection
from metier.store.postgres.text import decode, encode

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
        "run": encode(lease.run_id),
        "owner": encode(lease.owner),
        "token": lease.token,
        "first": first_seq,
        "seqs": [entry.seq for entry in entries],
        "kinds": [encode(entry.kind) for entry in entries],
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
            (encode(run_id), entry.seq, encode(entry.kind), entry.data, checksum_of(run_id, entry)),
        )
        await name_blobs(connection, run_id, entry.data)


async def find_entries(connection: Connection, run_id: str, *, after: int, limit: int | None) -> list[StoredEntry]:
    """Raises `StoreDamaged` for an entry that is not what was written, or is missing."""
    entries: list[StoredEntry] = []
    expected = after
    for seq, kind, data, checksum in await fetch_all(
        connection,
        "SELECT seq, kind, data, checksum FROM agent_journal WHERE run_id = %s AND seq > %s ORDER BY seq LIMIT %s",
        (encode(run_id), after, limit),
    ):
        entry = StoredEntry(int(seq), decode(kind), bytes(data))
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
    row = await fetch_one(connection, query, (encode(run_id),))
    return int(row[0]) if row else 0


async def name_blobs(connection: Connection, run_id: str, data: bytes) -> None:
    """Note which blobs these bytes name."""
    digests = list(find_digests(data))
    if digests:
        await connection.execute(
            "INSERT INTO agent_blob_names (run_id, digest) SELECT %s, digest FROM agent_blobs WHERE digest = ANY(%s)"
            " ON CONFLICT DO NOTHING",
            (encode(run_id), digests),
        )
