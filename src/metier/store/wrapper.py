"""Stores that delegate to another store."""

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Literal

from metier.decisions import TaskState
from metier.store.base import (
    ApprovalAttempt,
    ApprovalRow,
    Lease,
    RecordedDecision,
    RunRow,
    RunSearch,
    Store,
    StoredEntry,
)
from metier.store.contexts import ContextStore
from metier.store.outbox import OutboxStore
from metier.store.schedules import ScheduleStore
from metier.store.usage import UsageStore


class StoreReader:
    """Delegates the reads of a store. A subclass is only a `store.base.Store` if it defines every write.

    Replays use it: if a write is added to `Store`, the type checker reports it instead of it reaching the real store.
    """

    def __init__(self, inner: Store) -> None:
        self.inner = inner

    @property
    def contexts(self) -> ContextStore:
        return self.inner.contexts

    @property
    def schedules(self) -> ScheduleStore:
        return self.inner.schedules

    @property
    def outbox(self) -> OutboxStore:
        return self.inner.outbox

    @property
    def usage(self) -> UsageStore:
        return self.inner.usage

    async def read_journal(self, run_id: str, *, after: int = 0, limit: int | None = None) -> list[StoredEntry]:
        return await self.inner.read_journal(run_id, after=after, limit=limit)

    async def list_stale(self, *, queue: str, limit: int = 100) -> list[RunRow]:
        return await self.inner.list_stale(queue=queue, limit=limit)

    async def wait_for_entries(self, run_id: str, *, after: int, seconds: float) -> bool:
        return await self.inner.wait_for_entries(run_id, after=after, seconds=seconds)

    async def find_run(self, run_id: str) -> RunRow | None:
        return await self.inner.find_run(run_id)

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
        return await self.inner.list_runs(
            prefix=prefix, status=status, context_id=context_id, queue=queue, before=before, limit=limit
        )

    async def search_runs(self, search: RunSearch, *, before: int = 0, limit: int = 100) -> list[RunRow]:
        return await self.inner.search_runs(search, before=before, limit=limit)

    async def list_ended(
        self, *, updated_before: datetime, after: RunRow | None = None, number_below: int = 0, limit: int = 100
    ) -> list[RunRow]:
        return await self.inner.list_ended(
            updated_before=updated_before, after=after, number_below=number_below, limit=limit
        )

    async def get_blob(self, digest: str) -> bytes:
        return await self.inner.get_blob(digest)

    async def find_approvals(self, prefix: str, *, limit: int = 2) -> list[ApprovalRow]:
        return await self.inner.find_approvals(prefix, limit=limit)

    async def list_approvals(
        self, *, run_id: str = "", status: str = "", after: int = 0, limit: int | None = None
    ) -> list[ApprovalRow]:
        return await self.inner.list_approvals(run_id=run_id, status=status, after=after, limit=limit)

    async def list_attempts(self, approval_id: str) -> list[ApprovalAttempt]:
        return await self.inner.list_attempts(approval_id)

    async def list_decisions(
        self, *, decided_by: str = "", status: str = "", before: int = 0, limit: int = 100
    ) -> list[RecordedDecision]:
        return await self.inner.list_decisions(decided_by=decided_by, status=status, before=before, limit=limit)


class StoreWrapper(StoreReader):
    """`store.base.Store` by delegation. Override the methods that should behave differently."""

    async def create_run(self, row: RunRow, entries: Sequence[StoredEntry] = ()) -> None:
        await self.inner.create_run(row, entries)

    async def begin_run(self, row: RunRow, entries: Sequence[StoredEntry], *, owner: str, seconds: float) -> Lease:
        return await self.inner.begin_run(row, entries, owner=owner, seconds=seconds)

    async def append(
        self, lease: Lease, first_seq: int, entries: Sequence[StoredEntry], *, durable: bool = True
    ) -> None:
        await self.inner.append(lease, first_seq, entries, durable=durable)

    async def take_lease(self, run_id: str, *, owner: str, seconds: float) -> Lease:
        return await self.inner.take_lease(run_id, owner=owner, seconds=seconds)

    async def claim_run(self, *, queue: str, owner: str, seconds: float) -> Lease | None:
        return await self.inner.claim_run(queue=queue, owner=owner, seconds=seconds)

    async def renew_lease(self, lease: Lease, *, seconds: float) -> None:
        await self.inner.renew_lease(lease, seconds=seconds)

    async def release_lease(self, lease: Lease) -> None:
        await self.inner.release_lease(lease)

    async def update_run(self, lease: Lease, changes: Mapping[str, str | int | float]) -> None:
        await self.inner.update_run(lease, changes)

    async def ask_to_end(self, run_id: str, ending: str) -> None:
        await self.inner.ask_to_end(run_id, ending)

    async def delete_run(self, run_id: str) -> None:
        await self.inner.delete_run(run_id)

    async def delete_runs(self, run_ids: Sequence[str], *, updated_before: datetime | None = None) -> list[str]:
        return await self.inner.delete_runs(run_ids, updated_before=updated_before)

    async def reclaim(self, *, updated_before: datetime | None = None) -> None:
        await self.inner.reclaim(updated_before=updated_before)

    async def put_blob(self, data: bytes) -> str:
        return await self.inner.put_blob(data)

    async def put_approval(self, lease: Lease, row: ApprovalRow) -> None:
        await self.inner.put_approval(lease, row)

    async def decide_approval(
        self,
        approval_id: str,
        *,
        status: Literal["approved", "denied", "expired"],
        decided_by: str,
        reason: str = "",
        edited_payload: bytes | None = None,
    ) -> bool:
        return await self.inner.decide_approval(
            approval_id, status=status, decided_by=decided_by, reason=reason, edited_payload=edited_payload
        )

    async def close(self) -> None:
        await self.inner.close()
