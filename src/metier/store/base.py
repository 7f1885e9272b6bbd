"""The interface of run stores: its values, its methods, and the checks that every store applies to an entry."""

import zlib
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import datetime
from typing import Literal, Protocol

import anyio
from msgspec import Struct

from metier.decisions import TaskState
from metier.errors import StoreError, unwrapped
from metier.store.contexts import ContextStore
from metier.store.failures import SeqTaken, StoreDamaged
from metier.store.outbox import OutboxStore
from metier.store.schedules import ScheduleStore
from metier.store.usage import UsageStore


class RunSearch(Struct, frozen=True, kw_only=True):
    """Search conditions, joined by AND. Several values of one field are joined by OR. Empty fields are no condition."""

    statuses: tuple[TaskState, ...] = ()
    not_statuses: tuple[TaskState, ...] = ()
    agents: tuple[str, ...] = ()
    not_agents: tuple[str, ...] = ()
    models: tuple[str, ...] = ()
    not_models: tuple[str, ...] = ()
    skills: tuple[str, ...] = ()
    not_skills: tuple[str, ...] = ()
    tasks: tuple[str, ...] = ()
    """IDs of task definitions."""
    not_tasks: tuple[str, ...] = ()
    words: tuple[str, ...] = ()
    """Words that must all occur in the task's text or in the id, ignoring case."""
    not_words: tuple[str, ...] = ()
    min_cost: float | None = None
    max_cost: float | None = None
    created_since: datetime | None = None
    created_before: datetime | None = None
    without_children: bool = False
    """Exclude runs that another run delegated."""


FIELDS: tuple[tuple[str, str], ...] = (
    ("status", "statuses"),
    ("agent", "agents"),
    ("model", "models"),
    ("skill", "skills"),
    ("task_id", "tasks"),
)
"""Columns that are compared by equality, and the fields of `RunSearch` with their values."""


def quote_like(word: str) -> str:
    """Return a pattern for `LIKE … ESCAPE '!'` that finds the word anywhere."""
    # `!` first, or it would escape the escapes of the others.
    escaped = word.replace("!", "!!").replace("%", "!%").replace("_", "!_")
    return f"%{escaped}%"


class StoredEntry(Struct, frozen=True):
    """A journal entry as it is stored."""

    seq: int
    kind: str
    data: bytes


# Dataclasses, not Structs: stores of plugins copy these rows with `dataclasses.replace`, and equality ignores values
# that a store assigns.


@dataclass(frozen=True, slots=True, kw_only=True)
class Lease:
    """The temporary right of one process to drive a run."""

    run_id: str
    owner: str
    token: int
    """The fencing token. It grows with every new holder, and every write must have the current one."""
    left_by: str = field(default="", compare=False)
    """The previous holder, if it didn't release the lease because it died or was stopped for too long."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunRow:
    """A run in the index, readable without its journal."""

    run_id: str
    context_id: str
    status: TaskState
    task: str
    agent: str = ""
    model: str = ""
    parent_run_id: str = ""
    created_at: datetime
    updated_at: datetime
    turns: int = 0
    cost_usd: float = 0.0
    tokens: int = 0
    """Input and output tokens; 0 if the last process that drove the run was of a version that didn't count them."""
    reason: str = ""
    driver: str = ""
    """The process that holds the lease; empty if there is none."""
    left_by: str = ""
    """The last process, if it didn't release its lease; empty if the lease was released or is held."""
    queue: str = ""
    """The queue whose workers may claim the run; empty if the process that started the run drives it."""
    ending: str = ""
    """A pending request to end the run, see `ask_to_end`; empty if there is none."""
    skill: str = ""
    """The last recorded active skill; empty if none was active."""
    task_id: str = ""
    """The task definition that it runs, or is a step of; empty if there is none."""
    number: int = field(default=0, compare=False)
    """The position in the order of creation, assigned by the store. The cursor of `list_runs`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ApprovalRow:
    """A question to a user, and its answer."""

    approval_id: str
    run_id: str
    step_id: str
    payload: bytes
    """The exact call, as JSON."""
    created_at: datetime
    expires_at: datetime | None = None
    status: Literal["open", "approved", "denied", "expired"] = "open"
    decided_by: str = ""
    reason: str = ""
    edited_payload: bytes | None = None
    number: int = field(default=0, compare=False)
    """The position in the order of creation, assigned by the store. The cursor of `list_approvals`."""


class ApprovalAttempt(Struct, frozen=True, kw_only=True):
    """A decision on an approval, including late ones."""

    approval_id: str
    status: Literal["approved", "denied", "expired"]
    decided_by: str
    reason: str
    at: datetime
    counted: bool
    """True for the first decision."""


class RecordedDecision(Struct, frozen=True, kw_only=True):
    """A decision on an approval, with the call in question, for audits."""

    attempt: ApprovalAttempt
    run_id: str
    payload: bytes
    edited_payload: bytes | None
    number: int
    """The position in the order of recording. The cursor of `list_decisions`."""


MAX_UNFLUSHED = 500
"""Maximum number of entries of a run, about 1 MB, that a PostgreSQL server may not have flushed to disk yet."""
CHANGEABLE = frozenset({"status", "turns", "cost_usd", "tokens", "reason", "model", "ending", "queue", "skill"})
"""Columns of a run that its driver can change."""

RUNNABLE: tuple[TaskState, ...] = ("pending", "in_progress")
"""Statuses of runs that can continue as soon as a process drives them; others wait for a user or have ended."""

ENDED: tuple[TaskState, ...] = ("completed", "failed", "timeout", "escalated", "canceled")
"""Final statuses: these runs never change again."""


class Store(Protocol):
    """Journal, leases, blobs, run index, approvals, conversations, schedules. `close` may be called twice."""

    @property
    def contexts(self) -> ContextStore: ...

    @property
    def schedules(self) -> ScheduleStore: ...

    @property
    def outbox(self) -> OutboxStore: ...

    @property
    def usage(self) -> UsageStore: ...

    async def create_run(self, row: RunRow, entries: Sequence[StoredEntry] = ()) -> None:
        """Create a run with the first entries of its journal in one transaction. Raises `RunExists`.

        The blobs that its reason or its entries name are kept as long as the run.
        """
        ...

    async def begin_run(self, row: RunRow, entries: Sequence[StoredEntry], *, owner: str, seconds: float) -> Lease:
        """Create a run durably and acquire its lease in the same transaction. Raises `RunExists`."""
        ...

    async def append(
        self, lease: Lease, first_seq: int, entries: Sequence[StoredEntry], *, durable: bool = True
    ) -> None:
        """Write entries at `first_seq`, `first_seq + 1`, … Raises `SeqTaken`, `LeaseLost`, `StoreFull`."""
        ...

    async def read_journal(self, run_id: str, *, after: int = 0, limit: int | None = None) -> list[StoredEntry]:
        """Read the entries with a sequence number above `after`, in order."""
        ...

    async def wait_for_entries(self, run_id: str, *, after: int, seconds: float) -> bool:
        """Wait until any process has written an entry after number `after`. Return False if that takes too long."""
        ...

    async def take_lease(self, run_id: str, *, owner: str, seconds: float) -> Lease:
        """Acquire the lease of a run if it is free or has expired. Raises `LeaseHeld`, `RunUnknown`."""
        ...

    async def claim_run(self, *, queue: str, owner: str, seconds: float) -> Lease | None:
        """Acquire the lease of a queue's oldest run that can continue and has no driver. Return None without one.

        Processes that claim at the same time get different runs.
        """
        ...

    async def list_stale(self, *, queue: str, limit: int = 100) -> list[RunRow]:
        """List the runs of a queue that can continue and have no driver, oldest first."""
        ...

    async def renew_lease(self, lease: Lease, *, seconds: float) -> None:
        """Extend a lease. Raises `LeaseLost` if another process took over."""
        ...

    async def release_lease(self, lease: Lease) -> None:
        """Release a lease. Releasing a lost lease does nothing."""
        ...

    async def update_run(self, lease: Lease, changes: Mapping[str, str | int | float]) -> None:
        """Change the columns in `CHANGEABLE`. Raises `LeaseLost`."""
        ...

    async def ask_to_end(self, run_id: str, ending: str) -> None:
        """Ask the current or next driver of the run, on any machine, to end it. The first request wins.

        It needs no lease and doesn't end the run by itself: the driver reads the request from the index. Raises
        `RunUnknown`.
        """
        ...

    async def find_run(self, run_id: str) -> RunRow | None: ...

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
        """List runs, newest first. `before` is the `number` of the previous page's last row; 0 for the first page.

        If more than `limit` runs have the prefix, the page has those with the last ids in sort order.
        """
        ...

    async def search_runs(self, search: RunSearch, *, before: int = 0, limit: int = 100) -> list[RunRow]:
        """Search runs, newest first. `before` is the `number` of the previous page's last row."""
        ...

    async def list_ended(
        self, *, updated_before: datetime, after: RunRow | None = None, number_below: int = 0, limit: int = 100
    ) -> list[RunRow]:
        """List ended runs by their last change, oldest first, except those whose parent has not ended.

        `after` is the previous page's last row. `number_below` only lists runs with a smaller number.
        """
        ...

    async def delete_run(self, run_id: str) -> None:
        """Delete a run with its journal, its approvals and its unshared blobs. Raises `LeaseHeld`."""
        ...

    async def delete_runs(self, run_ids: Sequence[str], *, updated_before: datetime | None = None) -> list[str]:
        """Delete runs in one transaction and return the deleted ones. Runs that have a driver are not deleted.

        `reclaim` frees the space. With `updated_before`, journals may remain until `reclaim` drops whole partitions.
        """
        ...

    async def reclaim(self, *, updated_before: datetime | None = None) -> None:
        """Free the space of deleted runs: blobs that no run names, free pages, and partitions before a time."""
        ...

    async def put_blob(self, data: bytes) -> str:
        """Store bytes under their SHA-256 and return it. Equal bytes are stored once."""
        ...

    async def get_blob(self, digest: str) -> bytes:
        """Return stored bytes. Raises `BlobUnknown`, or `StoreDamaged` if the bytes have changed."""
        ...

    async def put_approval(self, lease: Lease, row: ApprovalRow) -> None: ...

    async def decide_approval(
        self,
        approval_id: str,
        *,
        status: Literal["approved", "denied", "expired"],
        decided_by: str,
        reason: str = "",
        edited_payload: bytes | None = None,
    ) -> bool:
        """Record a decision. Only the first one takes effect; return True for it. Raises `ApprovalUnknown`."""
        ...

    async def list_attempts(self, approval_id: str) -> list[ApprovalAttempt]:
        """List all decisions, including late ones, oldest first."""
        ...

    async def list_decisions(
        self, *, decided_by: str = "", status: str = "", before: int = 0, limit: int = 100
    ) -> list[RecordedDecision]:
        """List decisions on all approvals, newest first. `before` is the `number` of the previous page's last row."""
        ...

    async def find_approvals(self, prefix: str, *, limit: int = 2) -> list[ApprovalRow]:
        """List the approvals with this id prefix, by id."""
        ...

    async def list_approvals(
        self, *, run_id: str = "", status: str = "", after: int = 0, limit: int | None = None
    ) -> list[ApprovalRow]:
        """List approvals, oldest first. `after` is the `number` of the previous page's last row."""
        ...

    async def close(self) -> None: ...


# Two passes of `translate` take 6 µs for an entry of 2.4 kB, a regular expression takes 60 µs.
_HEX_MASK = bytes(49 if chr(value) in "0123456789abcdef" else 32 for value in range(256))
_NOT_HEX = bytes(value if chr(value) in "0123456789abcdef" else 32 for value in range(256))
_DIGEST_LENGTH = 64
_ENOUGH_DIGITS = b"1" * _DIGEST_LENGTH


def checksum_of(run_id: str, entry: StoredEntry) -> int:
    # With the position: a correct entry in the wrong place is damage, too.
    return zlib.crc32(entry.data, zlib.crc32(f"{run_id}/{entry.seq}/{entry.kind}".encode()))


def list_digests(data: bytes) -> set[str]:
    """List every sequence of exactly 64 hexadecimal digits: possible digests of blobs."""
    # A cheap test first, because most entries name no blob.
    if _ENOUGH_DIGITS not in data.translate(_HEX_MASK):
        return set()
    return {word.decode("ascii") for word in data.translate(_NOT_HEX).split() if len(word) == _DIGEST_LENGTH}


def build_misplaced(run_id: str, first_seq: int, *, last: int) -> StoreError:
    """Build the error for entries that don't continue a journal which ends at `last`."""
    if first_seq <= last:
        return SeqTaken(
            f"Run {run_id!r} already has an entry {first_seq}; its journal ends at {last}, and nothing was written",
            hint="Read the journal again: another process continued this run",
        )
    return build_damaged(run_id, last + 1, f"is missing, so entry {first_seq} was not written")


def build_damaged(run_id: str, seq: int, what: str) -> StoreDamaged:
    return StoreDamaged(
        f"Entry {seq} of run {run_id!r} {what}",
        hint="Restore the run store from a backup; this run cannot continue",
    )


def make_printable(text: str) -> str:
    # Lone surrogates, for example from a command line that isn't UTF-8, can't be stored.
    return text.encode("utf-8", "replace").decode("utf-8")


def check_order(entries: Sequence[StoredEntry], first_seq: int) -> None:
    """Raise `ValueError` if the entries are not consecutive, which is a bug in the caller."""
    if first_seq < 1 or [entry.seq for entry in entries] != list(range(first_seq, first_seq + len(entries))):
        raise ValueError(f"The entries are not consecutive from {first_seq}")


def check_terms(owner: str, seconds: float) -> None:
    """Raise `ValueError` for a lease without an owner or a duration, which is a bug in the caller."""
    if not owner or seconds <= 0:
        raise ValueError("A lease needs an owner and a duration")


class ServerHealth(Struct, frozen=True, kw_only=True):
    seconds_ahead: float
    """Seconds by which the server's clock is ahead of this machine's clock; negative if it is behind."""
    error_seconds: float
    """Maximum error of that difference: half of the round trip."""
    known: frozenset[str] = frozenset()
    """Those of the given runs that the server has."""


@asynccontextmanager
async def keep_renewed(renew: Callable[[], Awaitable[None]], *, every_seconds: float) -> AsyncGenerator[None]:
    """Renew a lease or a claim while the block runs. If it is lost, cancel the block and raise the error of `renew`."""

    async def heartbeat() -> None:
        while True:
            await anyio.sleep(every_seconds)
            await renew()

    with unwrapped():
        async with anyio.create_task_group() as group:
            group.start_soon(heartbeat)
            yield
            group.cancel_scope.cancel()
