"""Search the run index by the statuses that users see, some of which the store doesn't know."""

from typing import Literal, cast, get_args

from msgspec import Struct
from msgspec.structs import replace

from metier.decisions import TASK_STATES, TaskState
from metier.runtime.records.index_rows import get_shown_status
from metier.store.base import RUNNABLE, RunRow, RunSearch, Store

type DriverlessStatus = Literal["interrupted", "queued", "worker_lost"]
DRIVERLESS: tuple[str, ...] = get_args(DriverlessStatus.__value__)
"""The statuses that `get_shown_status` derives: the store has these runs as pending or in progress."""
STATUSES: tuple[str, ...] = (*TASK_STATES, *DRIVERLESS)

_MAX_SCANNED = 2_000
"""Rows that one page scans, because the store can't filter by a derived status."""


class StatusFilter(Struct, frozen=True, kw_only=True):
    """Allowed and excluded statuses."""

    wanted: tuple[str, ...] = ()
    unwanted: tuple[str, ...] = ()
    only_shown: bool = False
    """Compare only the status as displayed. Otherwise an interrupted run is also in progress, as its JSON says."""

    def narrow(self, search: RunSearch) -> RunSearch:
        """Add the conditions that the store can check. `fits` checks the rest."""
        wanted = [state for word in self.wanted for state in (RUNNABLE if word in DRIVERLESS else (word,))]
        # A run in progress may be shown as interrupted, so the store cannot exclude it. `fits` does.
        undecided = {*DRIVERLESS, *(RUNNABLE if self.only_shown else ())}
        unwanted = [word for word in self.unwanted if word not in undecided]
        return replace(
            search,
            statuses=tuple(cast("TaskState", word) for word in dict.fromkeys(wanted)),  # the caller checked the words
            not_statuses=tuple(cast("TaskState", word) for word in unwanted),
        )

    def fits(self, row: RunRow) -> bool:
        shown = get_shown_status(row)
        names = {shown} if self.only_shown else {shown, row.status}
        return (not self.wanted or not names.isdisjoint(self.wanted)) and names.isdisjoint(self.unwanted)


class RunPage(Struct, frozen=True, kw_only=True):
    rows: tuple[RunRow, ...]
    next: int
    """For the next page; 0 on the last one."""


async def read_run_page(
    store: Store, search: RunSearch, statuses: StatusFilter, *, before: int = 0, limit: int
) -> RunPage:
    """Return the next matching runs, newest first. A page that isn't the last one can have fewer than `limit`."""
    search = statuses.narrow(search)
    found: list[RunRow] = []
    last, scanned = before, 0
    # One more than a page, to know whether another page follows.
    while len(found) <= limit and scanned < _MAX_SCANNED:
        rows = await store.search_runs(search, before=last, limit=limit + 1)
        if not rows:
            break
        last, scanned = rows[-1].number, scanned + len(rows)
        found += [row for row in rows if statuses.fits(row)]
    following = found[limit - 1].number if len(found) > limit else last if scanned >= _MAX_SCANNED else 0
    return RunPage(rows=tuple(found[:limit]), next=following)
