"""`store.base.Store` over the queries that SQLite and PostgreSQL share."""

from collections.abc import Mapping, Sequence
from datetime import datetime
from functools import partial
from itertools import batched
from typing import Literal

from anyio.lowlevel import checkpoint

from metier.decisions import TaskState
from metier.store.base import (
    ApprovalAttempt,
    ApprovalRow,
    Lease,
    RecordedDecision,
    RunRow,
    RunSearch,
    StoredEntry,
    check_order,
    check_terms,
    list_digests,
)
from metier.store.machine import Machine
from metier.store.queries import approvals, journal, leases, run_index
from metier.store.queries.blobs import Blobs
from metier.store.queries.contexts import SqlContexts
from metier.store.queries.outbox import SqlOutbox
from metier.store.queries.schedules import SqlSchedules
from metier.store.queries.session import Database, Session
from metier.store.queries.usage import SqlUsage

_PAGE = 256
"""Number of journal entries per statement. Other tasks run between two reads."""
_AFTER_ALL = "\U0010ffff"
"""The last character: a prefix and this sort after every other text with the same prefix."""


class SqlStore:
    """The shared part of `SqliteStore` and `PostgresStore`. They add waiting for entries and freeing disk space."""

    def __init__(self, database: Database, *, machine: Machine, blob_grace_seconds: float) -> None:
        self._database = database
        self._machine = machine
        self._blobs = Blobs(database, grace_seconds=blob_grace_seconds)
        self._contexts = SqlContexts(database, machine)
        self._schedules = SqlSchedules(database)
        self._outbox = SqlOutbox(database)
        self._usage = SqlUsage(database)

    @property
    def contexts(self) -> SqlContexts:
        return self._contexts

    @property
    def schedules(self) -> SqlSchedules:
        return self._schedules

    @property
    def outbox(self) -> SqlOutbox:
        return self._outbox

    @property
    def usage(self) -> SqlUsage:
        return self._usage

    async def create_run(self, row: RunRow, entries: Sequence[StoredEntry] = ()) -> None:
        check_order(entries, 1)
        # Nothing depends on a run without entries yet. Its first entries make it durable.
        await self._database.write(lambda db: _insert_run(db, row, entries), durable=bool(entries))

    async def begin_run(self, row: RunRow, entries: Sequence[StoredEntry], *, owner: str, seconds: float) -> Lease:
        check_order(entries, 1)
        check_terms(owner, seconds)

        async def change(db: Session) -> Lease:
            await _insert_run(db, row, entries)
            return await leases.take(db, row.run_id, owner=owner, seconds=seconds, machine=self._machine)

        return await self._database.write(change, durable=True)

    async def append(
        self, lease: Lease, first_seq: int, entries: Sequence[StoredEntry], *, durable: bool = True
    ) -> None:
        check_order(entries, first_seq)
        await self._database.append(
            lambda db: journal.append(db, lease, entries, durable=durable),
            lambda db: journal.has_entries(db, lease.run_id, entries),
            durable=durable,
        )

    async def read_journal(self, run_id: str, *, after: int = 0, limit: int | None = None) -> list[StoredEntry]:
        entries: list[StoredEntry] = []
        while limit is None or len(entries) < limit:
            page = _PAGE if limit is None else min(_PAGE, limit - len(entries))
            start = after + len(entries)
            found = await self._database.read(
                lambda db, start=start, page=page: journal.list_entries(db, run_id, after=start, limit=page)
            )
            entries += found
            if len(found) < page:
                break
            await checkpoint()
        return entries

    async def take_lease(self, run_id: str, *, owner: str, seconds: float) -> Lease:
        check_terms(owner, seconds)
        return await self._database.write(
            # Not synced: a power failure that undoes this also ends the holder.
            lambda db: leases.take(db, run_id, owner=owner, seconds=seconds, machine=self._machine)
        )

    async def claim_run(self, *, queue: str, owner: str, seconds: float) -> Lease | None:
        if not queue or not owner or seconds <= 0:
            raise ValueError("A claim needs a queue, the name of its owner and a time")
        return await self._database.write(
            lambda db: leases.claim(db, queue=queue, owner=owner, seconds=seconds, machine=self._machine)
        )

    async def list_stale(self, *, queue: str, limit: int = 100) -> list[RunRow]:
        return await self._database.read(
            lambda db: run_index.list_stale(db, queue=queue, limit=limit, machine=self._machine)
        )

    async def renew_lease(self, lease: Lease, *, seconds: float) -> None:
        await self._database.write(
            lambda db: leases.renew(db, lease, seconds=seconds, machine=self._machine), repeatable=True
        )

    async def release_lease(self, lease: Lease) -> None:
        await self._database.write(lambda db: leases.release(db, lease), repeatable=True)

    async def update_run(self, lease: Lease, changes: Mapping[str, str | int | float]) -> None:
        async def change(db: Session) -> None:
            await leases.check_fence(db, lease)
            await run_index.update_run(db, lease.run_id, changes)

        await self._database.write(change, repeatable=True)

    async def ask_to_end(self, run_id: str, ending: str) -> None:
        await self._database.write(lambda db: run_index.ask_to_end(db, run_id, ending), durable=True, repeatable=True)

    async def find_run(self, run_id: str) -> RunRow | None:
        found = await self._list_runs({"run.run_id = ?": run_id}, limit=1) if run_id else []
        return found[0] if found else None

    async def list_runs(
        self,
        *,
        prefix: str = "",
        status: TaskState | None = None,
        context_id: str = "",
        queue: str = "",
        before: int = 0,
        limit: int = 100,
    ) -> list[RunRow]:
        where: run_index.Conditions = {
            "run.run_id >= ?": prefix,
            "run.run_id < ?": prefix and prefix + _AFTER_ALL,
            "status = ?": status or "",
            "context_id = ?": context_id,
            "queue = ?": queue,
            "number < ?": before,
        }
        return await self._list_runs(where, limit=limit)

    async def search_runs(self, search: RunSearch, *, before: int = 0, limit: int = 100) -> list[RunRow]:
        return await self._database.read(
            lambda db: run_index.search_runs(db, search, before=before, limit=limit, machine=self._machine)
        )

    async def list_ended(
        self, *, updated_before: datetime, after: RunRow | None = None, number_below: int = 0, limit: int = 100
    ) -> list[RunRow]:
        page = run_index.EndedRuns(updated_before=updated_before, after=after, number_below=number_below, limit=limit)
        return await self._database.read(lambda db: run_index.list_ended(db, page, machine=self._machine))

    async def delete_run(self, run_id: str) -> None:
        """Raises `RunUnknown` and `LeaseHeld`."""

        async def change(db: Session) -> None:
            await leases.check_free(db, run_id, self._machine)
            await run_index.delete_runs(db, [run_id], machine=self._machine)

        await self._database.write(change, slow=True)
        await self.reclaim()

    async def delete_runs(self, run_ids: Sequence[str], *, updated_before: datetime | None = None) -> list[str]:
        del updated_before  # only for stores with partitions
        return await self._database.write(
            lambda db: run_index.delete_runs(db, run_ids, machine=self._machine), slow=True
        )

    async def reclaim(self, *, updated_before: datetime | None = None) -> None:
        del updated_before
        await self._blobs.sweep()

    async def put_blob(self, data: bytes) -> str:
        return await self._blobs.put(data)

    async def get_blob(self, digest: str) -> bytes:
        return await self._blobs.get(digest)

    async def put_approval(self, lease: Lease, row: ApprovalRow) -> None:

        async def change(db: Session) -> None:
            await leases.check_fence(db, lease)
            await approvals.insert_approval(db, row)
            await journal.name_blobs(db, row.run_id, sorted(list_digests(row.payload)))

        await self._database.write(change, durable=True, repeatable=True)

    async def decide_approval(
        self,
        approval_id: str,
        *,
        status: Literal["approved", "denied", "expired"],
        decided_by: str,
        reason: str = "",
        edited_payload: bytes | None = None,
    ) -> bool:
        decide = partial(
            approvals.decide,
            approval_id=approval_id,
            status=status,
            decided_by=decided_by,
            reason=reason,
            edited_payload=edited_payload,
        )
        # Not `repeatable`: after a lost connection, a repetition would find its own decision and call it late.
        return await self._database.write(decide, durable=True)

    async def list_attempts(self, approval_id: str) -> list[ApprovalAttempt]:
        return await self._database.read(lambda db: approvals.list_attempts(db, approval_id))

    async def list_decisions(
        self, *, decided_by: str = "", status: str = "", before: int = 0, limit: int = 100
    ) -> list[RecordedDecision]:
        where: run_index.Conditions = {
            "attempt.decided_by = ?": decided_by, "attempt.status = ?": status, "attempt.number < ?": before
        }  # fmt: skip
        return await self._database.read(lambda db: approvals.list_decisions(db, where, limit=limit))

    async def find_approvals(self, prefix: str, *, limit: int = 2) -> list[ApprovalRow]:
        # By code points, which the bounds of a prefix need. Other collations of PostgreSQL order letters differently.
        order = 'approval_id COLLATE "C"'
        where: run_index.Conditions = {f"{order} >= ?": prefix, f"{order} < ?": prefix and prefix + _AFTER_ALL}
        return await self._database.read(lambda db: approvals.list_approvals(db, where, order=order, limit=limit))

    async def list_approvals(
        self, *, run_id: str = "", status: str = "", after: int = 0, limit: int | None = None
    ) -> list[ApprovalRow]:
        where: run_index.Conditions = {"run_id = ?": run_id, "status = ?": status, "number > ?": after}
        return await self._database.read(lambda db: approvals.list_approvals(db, where, limit=limit))

    async def close(self) -> None:
        await self._database.close()

    async def _list_runs(self, where: run_index.Conditions, *, limit: int) -> list[RunRow]:
        return await self._database.read(lambda db: run_index.list_runs(db, where, limit=limit, machine=self._machine))


async def _insert_run(db: Session, row: RunRow, entries: Sequence[StoredEntry]) -> None:
    await run_index.insert_run(db, row)
    lease = await leases.insert_free(db, row.run_id)
    await journal.name_blobs(db, row.run_id, sorted(list_digests(row.reason.encode("utf-8", "replace"))))
    # An imported run has its whole journal, and a SQLite statement takes at most 32,766 values.
    for batch in batched(entries, _PAGE):
        await journal.append(db, lease, batch)
