"""The transactional outbox: outgoing messages, stored until they are delivered, each with its own key.

A message is written before the journal entry that it reports, with the position of that entry. The sender checks that
the entry exists. So a crash between the two writes loses no message and sends none about something that didn't happen.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Literal, Protocol

type OutboxState = Literal["open", "sent", "failed", "dropped"]
"""`failed`: given up after many attempts; `dropped`: the entry that it reports was never written."""

MAX_SETTLED = 500
"""Number of settled messages that a queue keeps."""


# Dataclasses, not Structs: equality ignores the reason of a failure, and `repr` must not show credentials.


@dataclass(frozen=True, slots=True, kw_only=True)
class OutboxRow:
    key: str
    """Identifies the message. The receiver gets it too, to ignore repeated messages."""
    queue: str
    """The queue of its workspace."""
    channel: str
    run_id: str = ""
    seq: int = 0
    """The journal entry that it reports; 0 for none."""
    payload: str
    """JSON."""
    created_at: datetime
    due_at: datetime
    """Time of the next attempt."""
    attempts: int = 0
    state: OutboxState = "open"
    reason: str = field(default="", compare=False)
    """Reason of the last failure."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Receiver:
    """An address that gets the messages of one run. It is deleted with the run."""

    run_id: str
    name: str
    """Unique within the run."""
    data: str = field(repr=False)
    """JSON, including the credentials for the receiver."""


class OutboxStore(Protocol):
    """Part of every store, see `store.base.Store.outbox`."""

    async def put(self, rows: Sequence[OutboxRow]) -> int:
        """Add messages and return the number of new ones. An existing key is ignored."""
        ...

    async def claim(self, queue: str, *, now: datetime, until: datetime) -> OutboxRow | None:
        """Claim the open message that has been due longest, until the time `until`, and count the attempt."""
        ...

    async def settle(self, row: OutboxRow) -> bool:
        """Store the state, next attempt and reason of a message. Return False if another process claimed it since."""
        ...

    async def list(self, queue: str, *, only_open: bool = False, limit: int = 100) -> list[OutboxRow]:
        """List messages, newest first."""
        ...

    async def set_receiver(self, receiver: Receiver) -> None:
        """Add a receiver, replacing one with the same run and name."""
        ...

    async def list_receivers(self, run_id: str) -> Sequence[Receiver]:
        """List the receivers of a run by name."""
        ...

    async def remove_receiver(self, run_id: str, name: str) -> None: ...
