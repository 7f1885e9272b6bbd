"""Schedules in a store: what was added, how far each was looked at, and what became of every due time.

A due time is decided once: `decide_due` moves the mark of a schedule from where its caller saw it, and writes down what
becomes of the due times in between, in one transaction. Of two processes that look at the same moment one is refused.
"""

from collections.abc import Sequence
from datetime import datetime
from typing import Literal, Protocol

from msgspec import Struct

type FiringOutcome = Literal["due", "started", "skipped", "missed", "failed"]
"""`due`: decided and still to be started, by any process; `started`: its run exists."""

MAX_FIRINGS = 500
"""Of one schedule, what is kept of its history beside what is still open."""


class ScheduleRow(Struct, frozen=True, kw_only=True):
    """A schedule that was added to the store, or what is known of one that a file defines."""

    queue: str
    """The queue of the workspace that it belongs to."""
    name: str
    definition: str = ""
    """As JSON; empty where a file of the workspace defines it."""
    is_paused: bool = False
    created_at: datetime


class ScheduleMark(Struct, frozen=True, kw_only=True):
    """Up to which due time a schedule was decided, for one timing of it."""

    queue: str
    name: str
    timing: str
    since: datetime
    """When this timing was first seen: due times before it do not count, and intervals begin here."""
    decided_to: datetime


class Firing(Struct, frozen=True, kw_only=True):
    """What became of one due time."""

    queue: str
    name: str
    due_at: datetime
    outcome: FiringOutcome
    run_id: str = ""
    reason: str = ""
    decided_at: datetime
    is_open: bool = False
    """Its run is still to be started, or has not ended."""


class ScheduleStore(Protocol):
    """Part of every store, see `store.base.Store.schedules`."""

    async def put_schedule(self, row: ScheduleRow, *, replace: bool = False) -> bool:
        """False, and nothing is written, where one of that name was added before and is not to be replaced."""
        ...

    async def list_schedules(self, queue: str) -> list[ScheduleRow]:
        """By name."""
        ...

    async def delete_schedule(self, queue: str, name: str) -> bool:
        """With its marks; its history stays. False where there is none."""
        ...

    async def pause_schedule(self, row: ScheduleRow, *, now: datetime) -> None:
        """Write down whether it is paused. Due times until `now` count as decided when it continues."""
        ...

    async def open_mark(self, mark: ScheduleMark) -> ScheduleMark:
        """The mark that is there; where there is none, this one from now on."""
        ...

    async def decide_due(self, mark: ScheduleMark, *, decided_to: datetime, firings: Sequence[Firing]) -> bool:
        """Move a mark from `mark.decided_to` and note firings. False, and nothing is written, where it has moved."""
        ...

    async def put_firing(self, firing: Firing) -> bool:
        """Note one that no due time asked for. False where there is one at that moment."""
        ...

    async def settle_firing(self, firing: Firing, *, was: FiringOutcome) -> bool:
        """Change outcome, reason and openness of one that is still open with that outcome; else False."""
        ...

    async def list_firings(
        self, queue: str, *, name: str = "", only_open: bool = False, limit: int = 100
    ) -> list[Firing]:
        """Latest due time first."""
        ...
