"""The store of a replay: it reads from the real one, compares appends with the recording, and drops writes."""

import hashlib
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Literal

from metier.engine.entries.entry import parse_entry
from metier.engine.replay.recording import Recording
from metier.store.base import ApprovalRow, Lease, RunRow, Store, StoredEntry
from metier.store.contexts import ContextStore
from metier.store.wrapper import StoreReader


class RecordedStore(StoreReader):
    """A read-only `store.base.Store` over another one.

    Schedules, outbox and usage come from the real store, because a replay never writes them.
    """

    def __init__(self, store: Store, recording: Recording, *, blobs: Mapping[str, bytes] | None = None) -> None:
        """`blobs` are available in addition to those of the real store."""
        super().__init__(store)
        self._recording = recording
        self._blobs = dict(blobs or {})

    @property
    def contexts(self) -> ContextStore:
        # Only tools and chats use conversations, and a replay runs neither. A bug must not reach those of the store.
        raise AssertionError("A replay uses no conversations")

    async def create_run(self, row: RunRow, entries: Sequence[StoredEntry] = ()) -> None:
        del row, entries

    async def begin_run(self, row: RunRow, entries: Sequence[StoredEntry], *, owner: str, seconds: float) -> Lease:
        """Reject starting a run in a replay."""
        del entries
        return await self.take_lease(row.run_id, owner=owner, seconds=seconds)

    async def append(
        self, lease: Lease, first_seq: int, entries: Sequence[StoredEntry], *, durable: bool = True
    ) -> None:
        """Compare an append with the record. Raises `Diverged`."""
        del lease, first_seq, durable
        for entry in entries:
            self._recording.take(parse_entry(entry.data))

    async def claim_run(self, *, queue: str, owner: str, seconds: float) -> Lease | None:
        """Claim nothing: a replay has no queue."""
        del queue, owner, seconds
        return None

    async def take_lease(self, run_id: str, *, owner: str, seconds: float) -> Lease:
        del seconds
        # Not that of the real store, in which another process may drive the run now.
        return Lease(run_id=run_id, owner=owner, token=0)

    async def renew_lease(self, lease: Lease, *, seconds: float) -> None:
        del lease, seconds

    async def release_lease(self, lease: Lease) -> None:
        del lease

    async def update_run(self, lease: Lease, changes: Mapping[str, str | int | float]) -> None:
        del lease, changes

    async def ask_to_end(self, run_id: str, ending: str) -> None:
        del run_id, ending

    async def delete_run(self, run_id: str) -> None:
        del run_id

    async def delete_runs(self, run_ids: Sequence[str], *, updated_before: datetime | None = None) -> list[str]:
        del run_ids, updated_before
        return []

    async def reclaim(self, *, updated_before: datetime | None = None) -> None:
        del updated_before

    async def put_blob(self, data: bytes) -> str:
        digest = hashlib.sha256(data).hexdigest()
        # In memory only: the replay reads it again, and must not write to the real store.
        self._blobs[digest] = data
        return digest

    async def get_blob(self, digest: str) -> bytes:
        return self._blobs[digest] if digest in self._blobs else await self.inner.get_blob(digest)

    async def put_approval(self, lease: Lease, row: ApprovalRow) -> None:
        del lease, row

    async def decide_approval(
        self,
        approval_id: str,
        *,
        status: Literal["approved", "denied", "expired"],
        decided_by: str,
        reason: str = "",
        edited_payload: bytes | None = None,
    ) -> bool:
        del approval_id, status, decided_by, reason, edited_payload
        return False

    async def close(self) -> None:
        return None
