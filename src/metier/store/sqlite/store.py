"""The embedded store: one SQLite file, for any number of processes of one machine. Its promises: `store.base`.

Deleting a run also removes blobs that no run names any more, unless they were put within the last hour. Naming is found
in the bytes themselves: 64 hexadecimal digits in an entry or approval, or in the reason of a new run, that are the
digest of a blob.
"""

import sqlite3
from collections.abc import Mapping, Sequence
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Literal

import anyio
from anyio.lowlevel import checkpoint

from metier.ids import Clock, SystemClock
from metier.store.base import (
    ApprovalAttempt,
    ApprovalRow,
    Lease,
    RunRow,
    RunSearch,
    StoredEntry,
    check_order,
    check_terms,
)
from metier.store.failures import RunUnknown
from metier.store.machine import Machine, SystemMachine
from metier.store.sqlite import leases, run_index
from metier.store.sqlite.connection import Opening
from metier.store.sqlite.contexts import SqliteContexts, Times
from metier.store.sqlite.database import Database, open_database
from metier.store.sqlite.journal import (
    Blobs,
    find_entries,
    find_last,
    has_entries,
    insert_entries,
    name_blobs,
)
from metier.store.sqlite.outbox import SqliteOutbox
from metier.store.sqlite.schedules import SqliteSchedules
from metier.store.sqlite.usage import SqliteUsage
from metier.task_state import TaskState

_PAGE = 256
"""Journal entries read in one go, between which other tasks have their turn."""
_LOOK_SECONDS = 0.02
"""How often a waiting task polls for new entries: SQLite does not notify other processes."""


async def open_sqlite_store(
    path: Path,
    *,
    clock: Clock | None = None,
    machine: Machine | None = None,
    lock_timeout_seconds: float = 10.0,
    blob_grace_seconds: float = 3600.0,
    connection_class: type[sqlite3.Connection] = sqlite3.Connection,
) -> "SqliteStore":
    """Open or create the file. Raises `StoreUnavailable`, `StoreDamaged` or `StoreFull` when it cannot serve.

    A write waits `lock_timeout_seconds` for other processes. A store belongs to the event loop that opened it.
    """
    opening = Opening(path=path, lock_timeout_seconds=lock_timeout_seconds, connection_class=connection_class)
    database = await open_database(opening)
    clock = clock or SystemClock()
    blobs = Blobs(database, clock, grace_seconds=blob_grace_seconds)
    return SqliteStore(database, blobs, clock=clock, machine=machine or SystemMachine())


class SqliteStore:
    """`store.base.Store` on SQLite. Made by `open_sqlite_store`."""

    def __init__(self, database: Database, blobs: Blobs, *, clock: Clock, machine: Machine) -> None:
        self._database = database
        self._blobs = blobs
        self._clock = clock
        self._machine = machine
        self._contexts = SqliteContexts(database, Times(clock, machine))
        self._schedules = SqliteSchedules(database)
        self._outbox = SqliteOutbox(database)
        self._usage = SqliteUsage(database)

    @property
    def contexts(self) -> SqliteContexts:
        return self._contexts

    @property
    def schedules(self) -> SqliteSchedules:
        return self._schedules

    @property
    def outbox(self) -> SqliteOutbox:
        return self._outbox

    @property
    def usage(self) -> SqliteUsage:
        return self._usage

    async def create_run(self, row: RunRow, entries: Sequence[StoredEntry] = ()) -> None:
        check_order(entries, 1)
        await self._database.write(partial(_insert_run, row=row, entries=entries), durable=bool(entries))

    async def begin_run(self, row: RunRow, entries: Sequence[StoredEntry], *, owner: str, seconds: float) -> Lease:
        check_order(entries, 1)
        check_terms(owner, seconds)

        def change(connection: sqlite3.Connection) -> Lease:
            _insert_run(connection, row, entries)
            return leases.take(
                connection, row.run_id, owner=owner, seconds=seconds, machine=self._machine, clock=self._clock
            )

        return await self._database.write(change, durable=True)

    async def append(
        self, lease: Lease, first_seq: int, entries: Sequence[StoredEntry], *, durable: bool = True
    ) -> None:
        check_order(entries, first_seq)

        def change(connection: sqlite3.Connection) -> None:
            last = leases.check_fence_and_end(connection, lease)
            insert_entries(connection, lease.run_id, entries, last=last)

        def landed(connection: sqlite3.Connection) -> bool:
            return has_entries(connection, lease.run_id, entries)

        await self._database.write(change, durable=durable, landed=landed)

    async def read_journal(self, run_id: str, *, after: int = 0, limit: int | None = None) -> list[StoredEntry]:
        entries: list[StoredEntry] = []
        while limit is None or len(entries) < limit:
            page = _PAGE if limit is None else min(_PAGE, limit - len(entries))
            found = await self._database.read(
                partial(find_entries, run_id=run_id, after=after + len(entries), limit=page)
            )
            entries += found
            if len(found) < page:
                break
            await checkpoint()
        return entries

    async def wait_for_entries(self, run_id: str, *, after: int, seconds: float) -> bool:
        with anyio.move_on_after(seconds):
            while not await self.read_journal(run_id, after=after, limit=1):  # noqa: ASYNC110 (no event says so)
                await anyio.sleep(_LOOK_SECONDS)
            return True
        return False

    async def take_lease(self, run_id: str, *, owner: str, seconds: float) -> Lease:
        check_terms(owner, seconds)

        def change(connection: sqlite3.Connection) -> Lease:
            return leases.take(
                connection, run_id, owner=owner, seconds=seconds, machine=self._machine, clock=self._clock
            )

        lease = await self._database.write(change)
        if not self._database.ballast.is_there():
            await self._database.in_thread(self._database.ballast.restore)
        return lease

    async def claim_run(self, *, queue: str, owner: str, seconds: float) -> Lease | None:
        def change(connection: sqlite3.Connection) -> Lease | None:
            stale = run_index.find_stale(connection, queue=queue, limit=1, machine=self._machine)
            if not stale:
                return None
            return leases.take(
                connection, stale[0].run_id, owner=owner, seconds=seconds, machine=self._machine, clock=self._clock
            )

        if not queue or not owner or seconds <= 0:
            raise ValueError("A claim needs a queue, the name of its owner and a time")
        return await self._database.write(change)

    async def list_stale(self, *, queue: str, limit: int = 100) -> list[RunRow]:
        return await self._database.read(partial(run_index.find_stale, queue=queue, limit=limit, machine=self._machine))

    async def renew_lease(self, lease: Lease, *, seconds: float) -> None:
        await self._database.write(partial(leases.renew, lease=lease, seconds=seconds, machine=self._machine))

    async def release_lease(self, lease: Lease) -> None:
        await self._database.write(partial(leases.release, lease=lease))

    async def update_run(self, lease: Lease, changes: Mapping[str, str | int | float]) -> None:
        def change(connection: sqlite3.Connection) -> None:
            leases.check_fence(connection, lease)
            run_index.update_run(connection, lease.run_id, changes, now=self._clock.now())

        await self._database.write(change)

    async def ask_to_end(self, run_id: str, ending: str) -> None:
        await self._database.write(partial(run_index.ask_to_end, run_id=run_id, ending=ending), durable=True)

    async def find_run(self, run_id: str) -> RunRow | None:
        found = await self._find_runs({"run_id = ?": run_id}, limit=1) if run_id else []
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
        where = {
            "run_id >= ?": prefix,
            "run_id < ?": prefix and prefix + "\U0010ffff",
            "status = ?": status or "",
            "context_id = ?": context_id,
            "queue = ?": queue,
            "number < ?": before or "",
        }
        return await self._find_runs(where, limit=limit)

    async def search_runs(self, search: RunSearch, *, before: int = 0, limit: int = 100) -> list[RunRow]:
        return await self._database.read(
            partial(run_index.search_runs, search=search, before=before, limit=limit, machine=self._machine)
        )

    async def list_ended(
        self, *, updated_before: datetime, after: RunRow | None = None, number_below: int = 0, limit: int = 100
    ) -> list[RunRow]:
        wanted = run_index.Wanted(
            updated_before=updated_before, after=after, number_below=number_below, machine=self._machine
        )
        return await self._database.read(partial(run_index.find_ended, wanted=wanted, limit=limit))

    async def delete_run(self, run_id: str) -> None:
        """Raises `RunUnknown` too."""

        def change(connection: sqlite3.Connection) -> None:
            if connection.execute("SELECT 1 FROM runs WHERE run_id = ?", (run_id,)).fetchone() is None:
                raise RunUnknown(f"There is no run {run_id!r}", hint="List the runs with `agent runs list`")
            leases.check_free(connection, run_id, self._machine)
            run_index.delete_rows(connection, run_id)

        await self._database.write(change, slow=True)
        await self.reclaim()

    async def delete_runs(self, run_ids: Sequence[str], *, updated_before: datetime | None = None) -> list[str]:
        del updated_before  # there are no partitions here
        return await self._database.write(
            partial(run_index.delete_runs, run_ids=run_ids, machine=self._machine), slow=True
        )

    async def reclaim(self, *, updated_before: datetime | None = None) -> None:
        del updated_before
        await self._blobs.sweep()
        await self._database.shrink()
        await self._database.in_thread(self._database.ballast.restore)

    async def put_blob(self, data: bytes) -> str:
        return await self._blobs.put(data)

    async def get_blob(self, digest: str) -> bytes:
        return await self._blobs.get(digest)

    async def put_approval(self, lease: Lease, row: ApprovalRow) -> None:
        """Asking the same question again changes nothing."""

        def change(connection: sqlite3.Connection) -> None:
            leases.check_fence(connection, lease)
            run_index.insert_approval(connection, row)
            name_blobs(connection, row.run_id, row.payload)

        await self._database.write(change, durable=True)

    async def decide_approval(
        self,
        approval_id: str,
        *,
        status: Literal["approved", "denied", "expired"],
        decided_by: str,
        reason: str = "",
        edited_payload: bytes | None = None,
    ) -> bool:
        decision = (status, decided_by, reason, edited_payload)
        return await self._database.write(
            partial(run_index.decide, approval_id=approval_id, decision=decision, now=self._clock.now()), durable=True
        )

    async def list_attempts(self, approval_id: str) -> list[ApprovalAttempt]:
        return await self._database.read(partial(run_index.find_attempts, approval_id=approval_id))

    async def find_approvals(self, prefix: str, *, limit: int = 2) -> list[ApprovalRow]:
        where = {"approval_id >= ?": prefix, "approval_id < ?": prefix and prefix + "\U0010ffff"}
        return await self._database.read(
            partial(run_index.find_approvals, where=where, order="approval_id", limit=limit)
        )

    async def list_approvals(
        self, *, run_id: str = "", status: str = "", after: int = 0, limit: int | None = None
    ) -> list[ApprovalRow]:
        where = {"run_id = ?": run_id, "status = ?": status, "number > ?": after or ""}
        return await self._database.read(partial(run_index.find_approvals, where=where, order="number", limit=limit))

    async def close(self) -> None:
        await self._database.close()

    async def _find_runs(self, where: Mapping[str, str | int | float], *, limit: int) -> list[RunRow]:
        return await self._database.read(partial(run_index.find_runs, where=where, limit=limit, machine=self._machine))


def _insert_run(connection: sqlite3.Connection, row: RunRow, entries: Sequence[StoredEntry]) -> None:
    run_index.insert_run(connection, row)
    name_blobs(connection, row.run_id, row.reason.encode("utf-8", "replace"))
    insert_entries(connection, row.run_id, entries, last=find_last(connection, row.run_id))
