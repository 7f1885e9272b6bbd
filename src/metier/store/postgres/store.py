"""The store for many machines: one PostgreSQL database. Its promises: `store.base`.

Every commit is durable, asked for or not: a run outlives a restart of the server, and an entry that went with it would
leave a hole in its journal. Times of leases are those of the server.
"""

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Literal

import anyio

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
from metier.store.failures import RunUnknown, SeqTaken
from metier.store.machine import Machine, SystemMachine
from metier.store.postgres import journal, leases, partitions, run_index
from metier.store.postgres.contexts import PostgresContexts
from metier.store.postgres.database import Address, Database, PoolOptions, open_database
from metier.store.postgres.journal import Blobs, Watcher
from metier.store.postgres.outbox import PostgresOutbox
from metier.store.postgres.schedules import PostgresSchedules
from metier.store.postgres.schema import Connection
from metier.store.postgres.usage import PostgresUsage
from metier.task_state import TaskState

_PAGE = 1000
"""Journal entries read in one go."""


async def open_postgres_store(
    address: Address,
    *,
    machine: Machine | None = None,
    pool: PoolOptions | None = None,
    blob_grace_seconds: float = 3600.0,
) -> "PostgresStore":
    """Connect and bring the tables up to date. Raises `StoreUnavailable` when the server cannot serve.

    A store belongs to the event loop that opened it.
    """
    database = await open_database(address, pool or PoolOptions())
    return PostgresStore(database, machine=machine or SystemMachine(), blob_grace_seconds=blob_grace_seconds)


class PostgresStore:
    """`store.base.Store` on PostgreSQL. Made by `open_postgres_store`."""

    def __init__(self, database: Database, *, machine: Machine, blob_grace_seconds: float) -> None:
        self._database = database
        self._machine = machine
        self._blobs = Blobs(database, grace_seconds=blob_grace_seconds)
        self._contexts = PostgresContexts(database, machine)
        self._schedules = PostgresSchedules(database)
        self._outbox = PostgresOutbox(database)
        self._usage = PostgresUsage(database)
        self._watcher = Watcher(database)
        self._days: set[str] = set()
        """Days that were seen to: their journal has a table, or cannot have one."""

    @property
    def contexts(self) -> PostgresContexts:
        return self._contexts

    @property
    def schedules(self) -> PostgresSchedules:
        return self._schedules

    @property
    def outbox(self) -> PostgresOutbox:
        return self._outbox

    @property
    def usage(self) -> PostgresUsage:
        return self._usage

    async def create_run(self, row: RunRow, entries: Sequence[StoredEntry] = ()) -> None:
        check_order(entries, 1)
        await self._add_day(row.run_id)
        await self._database.once(lambda connection: _insert_run(connection, row, entries))

    async def begin_run(self, row: RunRow, entries: Sequence[StoredEntry], *, owner: str, seconds: float) -> Lease:
        check_order(entries, 1)
        check_terms(owner, seconds)
        await self._add_day(row.run_id)

        async def work(connection: Connection) -> Lease:
            await _insert_run(connection, row, entries)
            return await leases.take(connection, row.run_id, owner=owner, seconds=seconds, machine=self._machine)

        return await self._database.once(work)

    async def append(
        self, lease: Lease, first_seq: int, entries: Sequence[StoredEntry], *, durable: bool = True
    ) -> None:
        del durable  # always: see the top of this file
        check_order(entries, first_seq)
        attempts = 0

        async def work(connection: Connection) -> None:
            nonlocal attempts
            attempts += 1
            try:
                await journal.append(connection, lease, entries)
            except SeqTaken:
                # The answer to an earlier attempt was lost, and perhaps it counted.
                if attempts == 1 or not await journal.has_entries(connection, lease.run_id, entries):
                    raise

        await self._database.run(work)

    async def read_journal(self, run_id: str, *, after: int = 0, limit: int | None = None) -> list[StoredEntry]:
        entries: list[StoredEntry] = []
        while limit is None or len(entries) < limit:
            page = _PAGE if limit is None else min(_PAGE, limit - len(entries))
            found = await self._find_entries(run_id, after=after + len(entries), limit=page)
            entries += found
            if len(found) < page:
                break
        return entries

    async def wait_for_entries(self, run_id: str, *, after: int, seconds: float) -> bool:
        async def has_come() -> bool:
            return bool(await self._find_entries(run_id, after=after, limit=1))

        with anyio.move_on_after(seconds):
            await self._watcher.wait(run_id, has_come)
            return True
        return False

    async def take_lease(self, run_id: str, *, owner: str, seconds: float) -> Lease:
        check_terms(owner, seconds)
        return await self._database.once(
            lambda connection: leases.take(connection, run_id, owner=owner, seconds=seconds, machine=self._machine)
        )

    async def claim_run(self, *, queue: str, owner: str, seconds: float) -> Lease | None:
        if not queue or not owner or seconds <= 0:
            raise ValueError("A claim needs a queue, the name of its owner and a time")

        return await self._database.once(
            lambda connection: leases.claim(
                connection, queue=queue, owner=owner, seconds=seconds, machine=self._machine
            )
        )

    async def list_stale(self, *, queue: str, limit: int = 100) -> list[RunRow]:
        return await self._database.run(
            lambda connection: run_index.find_stale(connection, queue=queue, limit=limit, machine=self._machine)
        )

    async def renew_lease(self, lease: Lease, *, seconds: float) -> None:
        await self._database.run(lambda connection: leases.renew(connection, lease, seconds=seconds))

    async def release_lease(self, lease: Lease) -> None:
        await self._database.run(lambda connection: leases.release(connection, lease))

    async def update_run(self, lease: Lease, changes: Mapping[str, str | int | float]) -> None:
        async def work(connection: Connection) -> None:
            await leases.check_fence(connection, lease)
            await run_index.update_run(connection, lease.run_id, changes)

        await self._database.transact(work)

    async def ask_to_end(self, run_id: str, ending: str) -> None:
        await self._database.run(lambda connection: run_index.ask_to_end(connection, run_id, ending))

    async def find_run(self, run_id: str) -> RunRow | None:
        found = await self._find_runs({"run_id = %s": run_id}, limit=1) if run_id else []
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
            "run_id >= %s": prefix,
            "run_id < %s": prefix and prefix + "\U0010ffff",
            "status = %s": status or "",
            "context_id = %s": context_id,
            "queue = %s": queue,
            "number < %s": before or "",
        }
        return await self._find_runs(where, limit=limit)

    async def search_runs(self, search: RunSearch, *, before: int = 0, limit: int = 100) -> list[RunRow]:
        return await self._database.run(
            lambda connection: run_index.search_runs(
                connection, search, before=before, limit=limit, machine=self._machine
            )
        )

    async def list_ended(
        self, *, updated_before: datetime, after: RunRow | None = None, number_below: int = 0, limit: int = 100
    ) -> list[RunRow]:
        wanted = run_index.Wanted(
            updated_before=updated_before, after=after, number_below=number_below, machine=self._machine
        )
        return await self._database.run(lambda connection: run_index.find_ended(connection, wanted, limit=limit))

    async def delete_run(self, run_id: str) -> None:
        """Raises `RunUnknown` too."""

        async def work(connection: Connection) -> None:
            holding = await leases.find_holding(connection, run_id, is_for_update=True)
            if holding is None:
                raise RunUnknown(f"There is no run {run_id!r}", hint="List the runs with `agent runs list`")
            leases.check_free(run_id, holding, self._machine)
            await run_index.delete_rows(connection, run_id)

        await self._database.once(work)
        await self._blobs.sweep()

    async def delete_runs(self, run_ids: Sequence[str], *, updated_before: datetime | None = None) -> list[str]:
        over = await self._find_days_over(updated_before, {partitions.find_day(run_id) for run_id in run_ids})
        return await self._database.once(
            lambda connection: run_index.delete_runs(connection, run_ids, machine=self._machine, days_over=over)
        )

    async def reclaim(self, *, updated_before: datetime | None = None) -> None:
        for day in await self._find_days(updated_before):
            await self._database.run(lambda connection, day=day: partitions.drop_day(connection, day))
        await self._blobs.sweep()

    async def _add_day(self, run_id: str) -> None:
        day = partitions.find_day(run_id)
        if day and day not in self._days:
            await self._database.run(lambda connection: partitions.add_day(connection, day))
            self._days.add(day)

    async def _find_days(self, before: datetime | None) -> list[str]:
        if before is None:
            return []
        return await self._database.run(lambda connection: partitions.find_days(connection, before))

    async def _find_days_over(self, before: datetime | None, days: set[str]) -> frozenset[str]:
        """Those whose tables can be dropped as a whole once their runs are gone: entries need not be deleted."""
        if before is None:
            return frozenset()

        async def work(connection: Connection) -> frozenset[str]:
            old = days.intersection(await partitions.find_days(connection, before))
            return frozenset([day for day in old if await partitions.is_over(connection, day, before)])

        return await self._database.run(work)

    async def put_blob(self, data: bytes) -> str:
        return await self._blobs.put(data)

    async def get_blob(self, digest: str) -> bytes:
        return await self._blobs.get(digest)

    async def put_approval(self, lease: Lease, row: ApprovalRow) -> None:
        """Asking the same question again changes nothing."""

        async def work(connection: Connection) -> None:
            await leases.check_fence(connection, lease)
            await run_index.insert_approval(connection, row)
            await journal.name_blobs(connection, row.run_id, row.payload)

        await self._database.transact(work)

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
        return await self._database.once(lambda connection: run_index.decide(connection, approval_id, decision))

    async def list_attempts(self, approval_id: str) -> list[ApprovalAttempt]:
        return await self._database.run(lambda connection: run_index.find_attempts(connection, approval_id))

    async def find_approvals(self, prefix: str, *, limit: int = 2) -> list[ApprovalRow]:
        where: run_index.Conditions = {
            'approval_id COLLATE "C" >= %s': prefix,
            'approval_id COLLATE "C" < %s': prefix and prefix + "\U0010ffff",
        }
        return await self._database.run(
            lambda connection: run_index.find_approvals(connection, where, order='approval_id COLLATE "C"', limit=limit)
        )

    async def list_approvals(
        self, *, run_id: str = "", status: str = "", after: int = 0, limit: int | None = None
    ) -> list[ApprovalRow]:
        where: run_index.Conditions = {"run_id = %s": run_id, "status = %s": status, "number > %s": after or ""}
        return await self._database.run(
            lambda connection: run_index.find_approvals(connection, where, order="number", limit=limit)
        )

    async def close(self) -> None:
        with anyio.CancelScope(shield=True):
            await self._watcher.close()
        await self._database.close()

    async def _find_entries(self, run_id: str, *, after: int, limit: int) -> list[StoredEntry]:
        return await self._database.run(
            lambda connection: journal.find_entries(connection, run_id, after=after, limit=limit)
        )

    async def _find_runs(self, where: run_index.Conditions, *, limit: int) -> list[RunRow]:
        return await self._database.run(
            lambda connection: run_index.find_runs(connection, where, limit=limit, machine=self._machine)
        )


async def _insert_run(connection: Connection, row: RunRow, entries: Sequence[StoredEntry]) -> None:
    await run_index.insert_run(connection, row)
    await journal.name_blobs(connection, row.run_id, row.reason.encode("utf-8", "replace"))
    await journal.insert_first(connection, row.run_id, entries)
