"""Fixtures for the store contract: the store under test, sample values, and assertions about errors."""

from collections.abc import Awaitable, Callable, Coroutine, Sequence
from datetime import UTC, datetime, timedelta

import anyio
from msgspec import Struct

from metier.errors import MetierError
from metier.store.base import ApprovalRow, Lease, RunRow, Store, StoredEntry


class Subject(Struct, frozen=True, kw_only=True):
    """The store under test."""

    open: Callable[[], Awaitable[Store]]
    """Open another handle on the same database."""
    pass_seconds: Callable[[float], Awaitable[None]]
    """Let time pass, by moving the store's clock or by waiting."""
    lease_seconds: float = 15.0
    blob_grace_seconds: float = 3600.0
    """Time before an unreferenced blob is deleted."""


class Case(Struct, frozen=True):
    """Two handles on an empty database."""

    first: Store
    second: Store
    subject: Subject

    async def start(self, run_id: str = "r1", owner: str = "ann") -> Lease:
        """Create a run and take its lease."""
        await self.first.create_run(build_run(run_id))
        return await self.take(run_id, owner)

    async def take(self, run_id: str = "r1", owner: str = "ann") -> Lease:
        return await self.first.take_lease(run_id, owner=owner, seconds=self.subject.lease_seconds)

    async def let_lease_end(self) -> None:
        await self.subject.pass_seconds(self.subject.lease_seconds * 1.01)


type Check = Callable[[Case], Coroutine[None, None, None]]

# With microseconds, so that a store that truncates times fails.
NOON = datetime(2026, 11, 1, 12, 0, 0, 123456, tzinfo=UTC)


def build_run(run_id: str, *, context_id: str = "c1") -> RunRow:
    return RunRow(run_id=run_id, context_id=context_id, status="pending", task="tidy", created_at=NOON, updated_at=NOON)


def build_entries(first_seq: int, count: int = 1, *, text: str = "entry") -> list[StoredEntry]:
    return [StoredEntry(seq, "note", f'{{"{text}": {seq}}}'.encode()) for seq in range(first_seq, first_seq + count)]


def build_approval(approval_id: str, run_id: str = "r1") -> ApprovalRow:
    return ApprovalRow(
        approval_id=approval_id,
        run_id=run_id,
        step_id="s1",
        payload=b'{"command": "ls"}',
        created_at=NOON,
        expires_at=NOON + timedelta(hours=1),
    )


async def refused[E: MetierError](kind: type[E], call: Awaitable[object]) -> E:
    """Assert that a call fails with this exception, and return it."""
    try:
        await call
    except kind as failure:
        return failure
    raise AssertionError(f"{kind.__name__} was expected, but nothing was raised")


async def outcomes_of(calls: Sequence[Awaitable[object]]) -> list[type[MetierError] | None]:
    """Run all calls at once; return None for each success and the exception class for each failure."""
    outcomes: list[type[MetierError] | None] = []

    async def run(call: Awaitable[object]) -> None:
        try:
            await call
        except MetierError as failure:
            outcomes.append(type(failure))
        else:
            outcomes.append(None)

    async with anyio.create_task_group() as tasks:
        for call in calls:
            tasks.start_soon(run, call)
    return outcomes
