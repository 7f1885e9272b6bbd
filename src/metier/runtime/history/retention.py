"""Deleting runs that have ended, page by page, with their folders. The next deletion finishes one that was cut short.

The rows go first, in one transaction a batch; a note beside the run folders names the batch until its folders are gone.
"""

import json
import os
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path

import anyio.to_thread

from metier.dataclass import dataclass
from metier.runtime.delegation.worktrees import remove_deleted
from metier.runtime.host import Host
from metier.runtime.records.run_folders import DELETING, find_folder, iterate_folders, read_deletions, remove_folder
from metier.runtime.runs import Runtime
from metier.store.base import ENDED, RunRow, Store
from metier.store.failures import StoreFull

BATCH = 500
"""Runs that one transaction deletes: enough to share its cost, few enough that drivers wait for milliseconds."""
_ALL_TIME = datetime(9999, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True, kw_only=True)
class Retention:
    """Which ended runs may go: all but the newest `keep`, and only those that ended so many days ago."""

    keep: int = 0
    older_than_days: float | None = None


async def find_old_runs(runtime: Runtime, wanted: Retention) -> AsyncGenerator[list[RunRow]]:
    """Ended runs that no process drives, whose parent has ended too; pages of those that ended first, first."""
    before, below = _find_deadline(runtime, wanted), 0
    if wanted.keep:
        below = await _find_oldest_kept(runtime.store, wanted.keep)
        if not below:
            return
    last: RunRow | None = None
    while page := await runtime.store.list_ended(updated_before=before, after=last, number_below=below, limit=BATCH):
        last = page[-1]
        yield [row for row in page if not row.driver]


async def delete_old_runs(runtime: Runtime, wanted: Retention, *, tell: Callable[[Sequence[str]], None]) -> int:
    """Delete them in batches; `tell` gets the ids of each batch that is gone. Returns how many went."""
    await anyio.to_thread.run_sync(_remove_noted, runtime.place, await _find_noted(runtime))
    before = _find_deadline(runtime, wanted) if wanted.older_than_days is not None and not wanted.keep else None
    count = 0
    async for page in find_old_runs(runtime, wanted):
        deleted = await _delete(runtime, [row.run_id for row in page], before)
        count += len(deleted)
        tell(deleted)
    if before is not None:
        await _remove_leftovers(runtime, before)
    await runtime.store.reclaim(updated_before=before)
    return count


def _find_deadline(runtime: Runtime, wanted: Retention) -> datetime:
    days = wanted.older_than_days
    return _ALL_TIME if days is None else runtime.place.clock.now() - timedelta(days=days)


async def _find_oldest_kept(store: Store, keep: int) -> int:
    """The number of the oldest of the newest ended runs; 0 when there are fewer."""
    number = 0
    while page := await store.list_runs(before=number, limit=BATCH):
        for row in page:
            keep -= row.status in ENDED and not row.driver and not await _is_needed(store, row)
            if keep == 0:
                return row.number
        number = page[-1].number
    return 0


async def _is_needed(store: Store, row: RunRow) -> bool:
    """An unfinished run may still ask how a run that it ordered ended."""
    parent = await store.find_run(row.parent_run_id) if row.parent_run_id else None
    return parent is not None and parent.status not in ENDED


async def _delete(runtime: Runtime, run_ids: Sequence[str], before: datetime | None) -> list[str]:
    """Those that were deleted: a run that a process began to drive meanwhile stays."""
    if not run_ids:
        return []
    note = runtime.place.runs / f"{DELETING}{os.getpid()}.json"
    # Before the rows go: after a kill the note tells a folder that is left over from a run that was lost.
    with suppress(OSError):  # a full disk is a reason to delete
        note.write_text(json.dumps(list(run_ids)), encoding="utf-8")
    try:
        deleted = await runtime.store.delete_runs(run_ids, updated_before=before)
    except StoreFull:
        note.unlink(missing_ok=True)
        return await _delete_on_full_disk(runtime, run_ids, before)
    await anyio.to_thread.run_sync(_remove_noted, runtime.place, {note: deleted})
    return deleted


async def _delete_on_full_disk(runtime: Runtime, run_ids: Sequence[str], before: datetime | None) -> list[str]:
    """Folders first, which need no room to go; then a few rows at a time: what they leave makes room for more."""
    if await _remove_folders(runtime, run_ids):
        return await _delete(runtime, run_ids, before)
    if len(run_ids) == 1:
        raise StoreFull(
            f"The disk is full, and what run {run_ids[0]!r} left was too little room to delete it",
            hint="Delete a file of your own, then run `agent runs gc` again",
        )
    half = len(run_ids) // 2
    first = await _delete(runtime, run_ids[:half], before)
    await runtime.store.reclaim()
    return [*first, *await _delete(runtime, run_ids[half:], before)]


async def _remove_folders(runtime: Runtime, run_ids: Sequence[str]) -> int:
    """Of runs that no process drives; how many there were. A kill leaves ended runs without folders, which can go."""
    runs = runtime.place.runs
    found = [run_id for run_id in run_ids if find_folder(runs, run_id, shard="off").exists()]
    for run_id in found:
        if (row := await runtime.store.find_run(run_id)) is not None and not row.driver:
            await anyio.to_thread.run_sync(remove_folder, runs, run_id)
    return sum(not find_folder(runs, run_id, shard="off").exists() for run_id in found)


async def _find_noted(runtime: Runtime) -> dict[Path, list[str]]:
    """Notes of deletions that were cut short, each with those of its runs that are gone."""
    return {
        note: [run_id for run_id in noted if await runtime.store.find_run(run_id) is None]
        for note, noted in read_deletions(runtime.place.runs).items()
    }


def _remove_noted(place: Host, noted: dict[Path, list[str]]) -> None:
    for note, run_ids in noted.items():
        for run_id in run_ids:
            remove_folder(place.runs, run_id)
            remove_deleted(place, run_id)
        note.unlink(missing_ok=True)


async def _remove_leftovers(runtime: Runtime, before: datetime) -> None:
    """Folders on this machine of runs that another machine deleted from the store that they share."""
    if runtime.place.settings.store.backend == "sqlite" or not await runtime.store.list_runs(limit=1):
        return  # an empty store is more likely a wrong address than an old one
    runs = runtime.place.runs
    for name in await anyio.to_thread.run_sync(_find_untouched, runs, before):
        if await runtime.store.find_run(name) is None:
            await anyio.to_thread.run_sync(remove_folder, runs, name)


def _find_untouched(runs: Path, before: datetime) -> list[str]:
    """Names of run folders that were last changed before that time."""
    return [folder.name for folder in iterate_folders(runs) if folder.stat().st_mtime < before.timestamp()]
