"""The seam between the engine and a database.

It holds the values and methods of a run store, and the rules that every store applies to an entry.
"""

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
    """Everything that is given must hold; of several values of one field, one must. Empty means no condition."""

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
    """Each must are in the text of the task or in the id, in whatever case."""
    not_words: tuple[str, ...] = ()
    least_cost: float | None = None
    most_cost: float | None = None
    begun_since: datetime | None = None
    begun_before: datetime | None = None
    without_children: bool = False
    """Leave out runs that another run ordered."""


FIELDS: tuple[tuple[str, str], ...] = (
    ("status", "statuses"),
    ("agent", "agents"),
    ("model", "models"),
    ("skill", "skills"),
    ("task_id", "tasks"),
)
"""Columns that are compared whole, and the attributes that name what is wanted of them."""


def quote_like(word: str) -> str:
    """A pattern for `LIKE … ESCAPE '!'` that finds the word wherever it stands."""
    escaped = word.replace("!", "!!").replace("%", "!%").replace("_", "!_")
    return f"%{escaped}%"


class StoredEntry(Struct, frozen=True):
    """One line of a journal, as it was written."""

    seq: int
    kind: str
    data: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Lease:
    """The right to drive one run, for a while."""

    run_id: str
    owner: str
    token: int
    """Fencing: grows with every new holder, and every write must carry the current one."""
    left_by: str = field(default="", compare=False)
    """The holder before, if it never released the lease: its process died or was stopped for too long."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunRow:
    """What the index knows of a run without reading its journal."""

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
    """Into the model and out of it; 0 for a run that was last driven before the index counted them."""
    reason: str = ""
    driver: str = ""
    """The process that holds the lease; empty when no process does."""
    left_by: str = ""
    """The process that held the lease last and never released it; empty when the last lease was released or is held."""
    queue: str = ""
    """The queue whose workers may claim the run; empty for a run that the process that started it drives."""
    ending: str = ""
    """A pending request to end the run, see `ask_to_end`; empty when there is none."""
    skill: str = ""
    """The skill in charge when the run was last looked at; empty where none was."""
    task_id: str = ""
    """The task definition that it carries out, or whose step it is; empty where there is none."""
    number: int = field(default=0, compare=False)
    """The place of the run in the order of creation, given by the store: the cursor of `list_runs`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ApprovalRow:
    """A question to a user, and its one answer."""

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
    """The place of the approval in the order of creation, given by the store: the cursor of `list_approvals`."""


class ApprovalAttempt(Struct, frozen=True, kw_only=True):
    """One decision on an approval, whether it came in time or not."""

    approval_id: str
    status: Literal["approved", "denied", "expired"]
    decided_by: str
    reason: str
    at: datetime
    counted: bool
    """It was the first one."""


class RecordedDecision(Struct, frozen=True, kw_only=True):
    """A decision on an approval with the call it was about, for an audit."""

    attempt: ApprovalAttempt
    run_id: str
    payload: bytes
    edited_payload: bytes | None
    number: int
    """The order in which decisions were recorded: the cursor of `list_decisions`."""


CHANGEABLE = frozenset({"status", "turns", "cost_usd", "tokens", "reason", "model", "ending", "queue", "skill"})
"""The columns of a run that its driver may change."""

RUNNABLE: tuple[TaskState, ...] = ("pending", "in_progress")
"""A run in one of these that no process drives can continue at once; others wait for a user or have ended."""

ENDED: tuple[TaskState, ...] = ("completed", "failed", "timeout", "escalated", "canceled")
"""A run in one of these never changes again."""


class Store(Protocol):
    """The journal, leases, blobs, the run index, approvals, conversations, schedules. `close` may be called twice."""

    @property
    def contexts(self) -> ContextStore: ...

    @property
    def schedules(self) -> ScheduleStore: ...

    @property
    def outbox(self) -> OutboxStore: ...

    @property
    def usage(self) -> UsageStore: ...

    async def create_run(self, row: RunRow, entries: Sequence[StoredEntry] = ()) -> None:
        """Put a new run into the index together with the beginning of its journal, all or nothing. Raises `RunExists`.

        A blob that its reason or an entry names stays as long as the run.
        """
        ...

    async def begin_run(self, row: RunRow, entries: Sequence[StoredEntry], *, owner: str, seconds: float) -> Lease:
        """The same, durable, and in the same transaction become its driver. Raises `RunExists`."""
        ...

    async def append(
        self, lease: Lease, first_seq: int, entries: Sequence[StoredEntry], *, durable: bool = True
    ) -> None:
        """Write entries at `first_seq`, `first_seq + 1`, … Raises `SeqTaken`, `LeaseLost`, `StoreFull`."""
        ...

    async def read_journal(self, run_id: str, *, after: int = 0, limit: int | None = None) -> list[StoredEntry]:
        """Entries with a sequence number above `after`, in order."""
        ...

    async def wait_for_entries(self, run_id: str, *, after: int, seconds: float) -> bool:
        """True as soon as the journal goes beyond `after`, from any process; False when the time is over."""
        ...

    async def take_lease(self, run_id: str, *, owner: str, seconds: float) -> Lease:
        """Become the driver of a run without one, or whose driver's lease expired. Raises `LeaseHeld`, `RunUnknown`."""
        ...

    async def claim_run(self, *, queue: str, owner: str, seconds: float) -> Lease | None:
        """Become the driver of the oldest run of a queue that can continue and has no driver; None if there is none.

        Processes that claim at the same time get different runs.
        """
        ...

    async def list_stale(self, *, queue: str, limit: int = 100) -> list[RunRow]:
        """Runs of a queue that can continue and have no driver, oldest first."""
        ...

    async def renew_lease(self, lease: Lease, *, seconds: float) -> None:
        """The heartbeat. Raises `LeaseLost` when another process took over."""
        ...

    async def release_lease(self, lease: Lease) -> None:
        """Give the run back at once. Releasing a lost lease does nothing."""
        ...

    async def update_run(self, lease: Lease, changes: Mapping[str, str | int | float]) -> None:
        """Change columns of the index row: those in `CHANGEABLE`. Raises `LeaseLost`."""
        ...

    async def ask_to_end(self, run_id: str, ending: str) -> None:
        """Ask the present or next driver of the run, on any machine, to end it. The first request stands.

        It needs no lease, and ends nothing by itself: drivers find the request in the index row. Raises `RunUnknown`.
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
        """Newest first. `before` is the `number` of the last row of the page before; 0 for the first page.

        Where more runs than `limit` have the prefix, the page holds those whose ids sort last.
        """
        ...

    async def search_runs(self, search: RunSearch, *, before: int = 0, limit: int = 100) -> list[RunRow]:
        """Runs that fit, newest first; `before` is the `number` of the last row of the page before."""
        ...

    async def list_ended(
        self, *, updated_before: datetime, after: RunRow | None = None, number_below: int = 0, limit: int = 100
    ) -> list[RunRow]:
        """Runs that have ended and whose parent, if any, has ended too, by the time of their last change, oldest first.

        `after` is the last row of the page before. With `number_below`, only runs that were created before that one.
        """
        ...

    async def delete_run(self, run_id: str) -> None:
        """Remove a run with its journal and approvals; blobs that nothing else names go too. Raises `LeaseHeld`."""
        ...

    async def delete_runs(self, run_ids: Sequence[str], *, updated_before: datetime | None = None) -> list[str]:
        """Remove runs in one transaction, and return those that were: a run that is being driven stays.

        Room is given back by `reclaim`. With `updated_before`, journals may stay until `reclaim` drops them together;
        the runs themselves are gone either way.
        """
        ...

    async def reclaim(self, *, updated_before: datetime | None = None) -> None:
        """Give back the room of deleted runs: blobs that no run names, free pages, whole partitions before a time."""
        ...

    async def put_blob(self, data: bytes) -> str:
        """Keep bytes under their SHA-256, which is returned; the same bytes twice are kept once."""
        ...

    async def get_blob(self, digest: str) -> bytes:
        """Raises `BlobUnknown`; raises `StoreDamaged` when the bytes are not those that were put."""
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
        """The first decision counts: True for it, False for every later one; all are kept. Raises `ApprovalUnknown`."""
        ...

    async def list_attempts(self, approval_id: str) -> list[ApprovalAttempt]:
        """Every decision that was made or tried, oldest first."""
        ...

    async def list_decisions(
        self, *, decided_by: str = "", status: str = "", before: int = 0, limit: int = 100
    ) -> list[RecordedDecision]:
        """Decisions on all approvals, newest first. `before` is the `number` of the last row of the page before."""
        ...

    async def find_approvals(self, prefix: str, *, limit: int = 2) -> list[ApprovalRow]:
        """Approvals whose id begins like this, by id."""
        ...

    async def list_approvals(
        self, *, run_id: str = "", status: str = "", after: int = 0, limit: int | None = None
    ) -> list[ApprovalRow]:
        """Oldest first. `after` is the `number` of the last row of the page before; without `limit`, all."""
        ...

    async def close(self) -> None: ...


_HEX_MASK = bytes(49 if chr(value) in "0123456789abcdef" else 32 for value in range(256))
_NOT_HEX = bytes(value if chr(value) in "0123456789abcdef" else 32 for value in range(256))
_DIGEST_LENGTH = 64
_ENOUGH_DIGITS = b"1" * _DIGEST_LENGTH


def checksum_of(run_id: str, entry: StoredEntry) -> int:
    return zlib.crc32(entry.data, zlib.crc32(f"{run_id}/{entry.seq}/{entry.kind}".encode()))


def list_digests(data: bytes) -> set[str]:
    """Every run of exactly 64 hexadecimal digits: what may be the digest of a blob."""
    if _ENOUGH_DIGITS not in data.translate(_HEX_MASK):  # most entries name none, and this is cheap
        return set()
    return {word.decode("ascii") for word in data.translate(_NOT_HEX).split() if len(word) == _DIGEST_LENGTH}


def build_misplaced(run_id: str, first_seq: int, *, last: int) -> StoreError:
    """Why an entry cannot stand at `first_seq` of a journal that ends at `last`."""
    if first_seq <= last:
        return SeqTaken(
            f"Run {run_id!r} already has an entry {first_seq}; its journal ends at {last}, and nothing was written",
            hint="Read the journal again: another process continued this run",
        )
    return build_damaged(run_id, last + 1, f"is missing, so entry {first_seq} was not written")


def build_damaged(run_id: str, seq: int, what: str) -> StoreDamaged:
    return StoreDamaged(
        f"Entry {seq} of run {run_id!r} {what}",
        hint="Restore the run store from a backup; this run cannot go on from here",
    )


def make_printable(text: str) -> str:
    """Text for people; what is not valid Unicode (an odd command line) cannot be stored and is shown as `?`."""
    return text.encode("utf-8", "replace").decode("utf-8")


def check_order(entries: Sequence[StoredEntry], first_seq: int) -> None:
    """Raises `ValueError` where entries do not follow each other from a place on: a mistake of the caller."""
    if first_seq < 1 or [entry.seq for entry in entries] != list(range(first_seq, first_seq + len(entries))):
        raise ValueError(f"Entries do not follow each other from {first_seq} on")


def check_terms(owner: str, seconds: float) -> None:
    """Raises `ValueError` for a lease that names no owner or no time: a mistake of the caller."""
    if not owner or seconds <= 0:
        raise ValueError("A lease needs the name of its owner and a time")


class ServerHealth(Struct, frozen=True, kw_only=True):
    seconds_ahead: float
    """By how much the clock of the server is ahead of the one of this machine; negative where it is behind."""
    doubt_seconds: float
    """Half of the time that the question took: the difference may be off by this."""
    known: frozenset[str] = frozenset()
    """The runs that it knows of those that were asked about."""


@asynccontextmanager
async def keep_renewed(renew: Callable[[], Awaitable[None]], *, every_seconds: float) -> AsyncGenerator[None]:
    """Renew a lease or a claim while the block runs. Losing it cancels the block and raises the error of `renew`."""

    async def beat() -> None:
        while True:
            await anyio.sleep(every_seconds)
            await renew()

    with unwrapped():
        async with anyio.create_task_group() as group:
            group.start_soon(beat)
            yield
            group.cancel_scope.cancel()
