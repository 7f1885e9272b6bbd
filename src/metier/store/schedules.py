"""The interface of stored schedules: definitions, progress marks, and the outcome of every due time.

Every due time is decided exactly once. In one transaction, `decide_due` moves a schedule's mark from the position that
its caller read, and records the due times in between. If two processes try at the same time, one of them fails.
"""

from collections.abc import Sequence
from datetime import datetime
from typing import Literal, Protocol

from msgspec import Struct

type FiringOutcome = Literal["due", "started", "skipped", "missed", "failed"]
"""`due`: any process may start its run; `started`: its run exists."""

# Settled ones only: an open one still needs its run, however old it is.
MAX_FIRINGS = 500
"""Number of settled firings kept for each schedule."""


class ScheduleRow(Struct, frozen=True, kw_only=True):
    """A schedule added to the store, or the stored state of one that a file defines."""

    queue: str
    """The queue of its workspace."""
    name: str
    definition: str = ""
    """JSON; empty if a file of the workspace defines it."""
    is_paused: bool = False
    created_at: datetime


class ScheduleMark(Struct, frozen=True, kw_only=True):
    """The last decided due time of a schedule, for one of its timings."""

    queue: str
    name: str
    timing: str
    since: datetime
    """Time at which this timing was first seen: earlier due times are ignored, and intervals start here."""
    decided_to: datetime


class Firing(Struct, frozen=True, kw_only=True):
    """The outcome of one due time."""

    queue: str
    name: str
    due_at: datetime
    outcome: FiringOutcome
    run_id: str = ""
    reason: str = ""
    decided_at: datetime
    is_open: bool = False
    """True until its run has started and ended."""


class ScheduleStore(Protocol):
    """Part of every store, see `store.base.Store.schedules`."""

    async def put_schedule(self, row: ScheduleRow, *, replace: bool = False) -> bool:
        """Add a schedule. Return False and write nothing if the name is taken, unless `replace` is true."""
        ...

    async def list_schedules(self, queue: str) -> list[ScheduleRow]:
        """List schedules by name."""
        ...

    async def delete_schedule(self, queue: str, name: str) -> bool:
        """Delete a schedule and its marks, but not its history. Return False if there is none."""
        ...

    async def pause_schedule(self, row: ScheduleRow, *, now: datetime) -> None:
        """Pause or resume a schedule. Due times until `now` count as decided."""
        ...

    async def open_mark(self, mark: ScheduleMark) -> ScheduleMark:
        """Return the stored mark, or store this one if there is none."""
        ...

    async def decide_due(self, mark: ScheduleMark, *, decided_to: datetime, firings: Sequence[Firing]) -> bool:
        """Move a mark from `mark.decided_to` and record firings. If it has moved since, write nothing; return False."""
        ...

    async def put_firing(self, firing: Firing) -> bool:
        """Record a manual firing. Return False if there is one at that time."""
        ...

    async def settle_firing(self, firing: Firing, *, was: FiringOutcome) -> bool:
        """Update outcome, reason and `is_open` of an open firing whose outcome is `was`. False if there is none."""
        ...

    async def list_firings(
        self, queue: str, *, name: str = "", only_open: bool = False, limit: int = 100
    ) -> list[Firing]:
        """List firings, the latest due time first."""
        ...
