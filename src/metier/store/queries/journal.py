"""The journal. Every entry has an exact position and a checksum. All functions run in the caller's transaction."""

from collections.abc import Sequence

from metier.store.base import Lease, StoredEntry, build_damaged, build_misplaced, checksum_of, list_digests
from metier.store.queries.leases import check_fence
from metier.store.queries.session import RowExists, Session, SqlValue

# FOR SHARE: a process that takes over the lease waits until this is committed, so its reads see these entries.
_HELD = "WITH held AS (SELECT * FROM leases WHERE run_id = ? AND owner = ? AND token = ? FOR SHARE)"
# Nothing is inserted unless the journal ends right before the first entry, so two writers can't both append.
_INSERT = (
    " INSERT INTO journal (run_id, seq, kind, data, checksum)"
    " SELECT held.run_id, column1, column2, column3, column4 FROM held, (VALUES {rows}) AS entry"
    " WHERE (SELECT coalesce(max(seq), 0) FROM journal WHERE run_id = ?) = ?"
)
_NAME_IN_PASSING = (
    ", named AS (INSERT INTO blob_names (run_id, digest) SELECT held.run_id, digest FROM blobs, held"
    " WHERE digest = ANY(?) ON CONFLICT DO NOTHING)"
)
# Each statement costs a round trip to the server and a commit, so PostgreSQL does everything in one statement. It only
# notifies if a process listens, because NOTIFY takes a lock that all commits of a database share.
_NOTIFY = " RETURNING (SELECT pg_notify('agent_journal', run_id) FROM held WHERE watched_until > clock_timestamp())"
# The entries become durable with the next durable commit, at the latest 0.6 s later: see `PostgresStore.append`.
_DEFER_FLUSH = ", set_config('synchronous_commit', 'off', TRUE)"


async def append(db: Session, lease: Lease, entries: Sequence[StoredEntry], *, durable: bool = True) -> None:
    """Append entries. Raises `SeqTaken`, `LeaseLost`, or `StoreDamaged` if an earlier entry is missing."""
    if not entries:
        await check_fence(db, lease)
        return
    digests = sorted({digest for entry in entries for digest in list_digests(entry.data)})
    insert = _INSERT.format(rows=", ".join(["(?, ?, ?, ?)"] * len(entries)))
    held: list[SqlValue] = [lease.run_id, lease.owner, lease.token]
    rows: list[SqlValue] = [value for entry in entries for value in _list_columns(lease.run_id, entry)]
    rows += [lease.run_id, entries[0].seq - 1]
    if db.dialect.name == "sqlite":
        added = await db.fetch_all(f"{_HELD}{insert} RETURNING 1", [*held, *rows])
        await name_blobs(db, lease.run_id, digests)
    else:
        names, named = (_NAME_IN_PASSING, [digests]) if digests else ("", [])
        statement = _HELD + names + insert + _NOTIFY + ("" if durable else _DEFER_FLUSH)
        try:
            added = await db.fetch_all(statement, [*held, *named, *rows])
        except RowExists:  # a second writer with the same lease was faster
            added = []
    if len(added) < len(entries):
        # The statement inserts all entries or none. Find the reason, the most likely one first.
        await check_fence(db, lease)
        raise build_misplaced(lease.run_id, entries[0].seq, last=await get_last_seq(db, lease.run_id))


def _list_columns(run_id: str, entry: StoredEntry) -> tuple[int, str, bytes, int]:
    return entry.seq, entry.kind, entry.data, checksum_of(run_id, entry)


async def list_entries(db: Session, run_id: str, *, after: int, limit: int) -> list[StoredEntry]:
    """List entries in order. Raises `StoreDamaged` if an entry is missing or has changed."""
    entries: list[StoredEntry] = []
    for expected, (seq, kind, data, checksum) in enumerate(
        await db.fetch_all(
            "SELECT seq, kind, data, checksum FROM journal WHERE run_id = ? AND seq > ? ORDER BY seq LIMIT ?",
            (run_id, after, limit),
        ),
        start=after + 1,
    ):
        entry = StoredEntry(seq, kind, data)
        if seq != expected:
            raise build_damaged(run_id, expected, "is missing")
        if checksum != checksum_of(run_id, entry):
            raise build_damaged(run_id, seq, "is not what was written")
        entries.append(entry)
    return entries


async def has_entries(db: Session, run_id: str, entries: Sequence[StoredEntry]) -> bool:
    """Return True if exactly these entries are in the journal."""
    if not entries:
        return True
    return await list_entries(db, run_id, after=entries[0].seq - 1, limit=len(entries)) == list(entries)


async def get_last_seq(db: Session, run_id: str) -> int:
    """Return the number of the last entry; 0 if there is none."""
    row = await db.fetch_one("SELECT coalesce(max(seq), 0) FROM journal WHERE run_id = ?", (run_id,))
    return int(row[0]) if row else 0


async def name_blobs(db: Session, run_id: str, digests: Sequence[str]) -> None:
    """Record that the run needs these blobs, as far as they exist."""
    if digests:
        await db.execute(
            "INSERT INTO blob_names (run_id, digest)"
            f" SELECT ?, digest FROM blobs WHERE digest {db.dialect.is_one_of} ON CONFLICT DO NOTHING",
            (run_id, digests),
        )
