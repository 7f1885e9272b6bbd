"""Messages that are to leave this program: kept in the store until they were taken, each under a key of its own.

A message is written before the journal entry that it is about, and names the place of that entry. The deliverer checks
that the entry is there: a kill between the two loses no message and sends none about what never happened.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Literal, Protocol

type OutboxState = Literal["open", "sent", "failed", "dropped"]
"""`failed`: given up after many attempts; `dropped`: what it tells of did not happen."""

MAX_KEPT = 500
"""Of one queue, messages that are through."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OutboxRow:
    key: str
    """Says which message it is, also to the receiver: the same key is the same message."""
    queue: str
    """The queue of the workspace that it belongs to."""
    channel: str
    run_id: str = ""
    seq: int = 0
    """The entry of the run's journal that it tells of; 0 for none."""
    payload: str
    """As JSON."""
    created_at: datetime
    due_at: datetime
    """Not before this time is it tried, or tried again."""
    attempts: int = 0
    state: OutboxState = "open"
    reason: str = field(default="", compare=False)
    """Why the last attempt failed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Receiver:
    """An address that wants to hear of one run. It goes with the run."""

    run_id: str
    name: str
    """One of a kind within the run."""
    data: str = field(repr=False)
    """As JSON; holds what the receiver knows the sender by."""


class OutboxStore(Protocol):
    """Part of every store, see `store.base.Store.outbox`."""

    async def put(self, rows: Sequence[OutboxRow]) -> int:
        """How many are new; one whose key is there is left as it is."""
        ...

    async def claim(self, queue: str, *, now: datetime, until: datetime) -> OutboxRow | None:
        """The open message that has been due longest; no other process gets it before `until`. The attempt counts."""
        ...

    async def settle(self, row: OutboxRow) -> bool:
        """Write state, next time and reason of a claimed message. False where another process has claimed it since."""
        ...

    async def list(self, queue: str, *, only_open: bool = False, limit: int = 100) -> list[OutboxRow]:
        """Latest first."""
        ...

    async def set_receiver(self, receiver: Receiver) -> None:
        """One of the same run and name is replaced."""
        ...

    async def list_receivers(self, run_id: str) -> Sequence[Receiver]:
        """By name."""
        ...

    async def remove_receiver(self, run_id: str, name: str) -> None: ...
