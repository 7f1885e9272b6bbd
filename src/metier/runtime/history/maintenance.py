"""Maintenance of stored runs: delete old ones with their folders, rebuild event logs from journals."""

import json
import os
import shutil
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path

import anyio.to_thread
from msgspec import Struct
from msgspec.structs import replace

from metier.engine.journal import read_entries
from metier.errors import LogError
from metier.events.record import EventRecord
from metier.ids import SystemClock
from metier.runtime.delegation.worktrees import remove_deleted
from metier.runtime.history.replays import get_start
from metier.runtime.history.run_views import read_intact_events
from metier.runtime.host import Host
from metier.runtime.records.run_folders import DELETING, get_folder, iterate_folders, read_deletions, remove_folder
from metier.runtime.records.run_log import JournalReplayer, check_journal
from metier.runtime.runs import Runtime
from metier.store.base import ENDED, RunRow, Store
from metier.store.failures import StoreFull
from metier.telemetry.jsonl import FILE_NAME, JsonlSink
from metier.telemetry.sinks import Sink

DELETION_BATCH = 500
"""Number of runs deleted per transaction: many, to share its cost, but not so many that drivers wait noticeably."""
_ALL_TIME = datetime(9999, 1, 1, tzinfo=UTC)


class Retention(Struct, frozen=True, kw_only=True):
    """The ended runs to delete: all but the newest `keep`, and only those older than the given days."""

    keep: int = 0
    older_than_days: float | None = None


async def list_old_runs(runtime: Runtime, wanted: Retention) -> AsyncGenerator[list[RunRow]]:
    """Yield pages of ended runs without a driver whose parent has also ended, oldest first."""
    before, below = _get_deadline(runtime, wanted), 0
    if wanted.keep:
        below = await _get_oldest_kept(runtime.store, wanted.keep)
        if not below:
            return
    last: RunRow | None = None
    while page := await runtime.store.list_ended(
        updated_before=before, after=last, number_below=below, limit=DELETION_BATCH
    ):
        last = page[-1]
        yield [row for row in page if not row.driver]


# Rows are deleted before folders, one transaction per batch. A note next to the run folders names the batch until its
# folders are deleted, so that the next deletion can finish an interrupted one.
async def delete_old_runs(runtime: Runtime, wanted: Retention, *, tell: Callable[[Sequence[str]], None]) -> int:
    """Delete old runs in batches; `tell` gets the IDs of each deleted batch. Return the number of deleted runs."""
    await anyio.to_thread.run_sync(_remove_noted, runtime.host, await _get_noted(runtime))
    # With a time, PostgreSQL drops the journals of whole days. With `keep`, runs of an old day may stay.
    before = _get_deadline(runtime, wanted) if wanted.older_than_days is not None and not wanted.keep else None
    count = 0
    async for page in list_old_runs(runtime, wanted):
        deleted = await _delete(runtime, [row.run_id for row in page], before)
        count += len(deleted)
        tell(deleted)
    if before is not None:
        await _remove_leftovers(runtime, before)
    await runtime.store.reclaim(updated_before=before)
    return count


def _get_deadline(runtime: Runtime, wanted: Retention) -> datetime:
    days = wanted.older_than_days
    return _ALL_TIME if days is None else runtime.host.clock.now() - timedelta(days=days)


async def _get_oldest_kept(store: Store, keep: int) -> int:
    """Return the number of the oldest run to keep; 0 if there are fewer."""
    number = 0
    while page := await store.list_runs(before=number, limit=DELETION_BATCH):
        for row in page:
            keep -= row.status in ENDED and not row.driver and not await _is_needed(store, row)
            if keep == 0:
                return row.number
        number = page[-1].number
    return 0


async def _is_needed(store: Store, row: RunRow) -> bool:
    """Return True if the parent has not ended, so that it may still read the end of this run."""
    parent = await store.find_run(row.parent_run_id) if row.parent_run_id else None
    return parent is not None and parent.status not in ENDED


async def _delete(runtime: Runtime, run_ids: Sequence[str], before: datetime | None) -> list[str]:
    """Delete the runs and return the deleted ones. Runs that a process drives by now are kept."""
    if not run_ids:
        return []
    # One note per process, so that concurrent deletions do not overwrite each other's.
    note = runtime.host.runs / f"{DELETING}{os.getpid()}.json"
    # Before the rows are deleted: after a kill, the note distinguishes a leftover folder from that of a lost run.
    with suppress(OSError):  # deletion must work on a full disk
        note.write_text(json.dumps(list(run_ids)), encoding="utf-8")
    try:
        deleted = await runtime.store.delete_runs(run_ids, updated_before=before)
    except StoreFull:
        note.unlink(missing_ok=True)
        return await _delete_on_full_disk(runtime, run_ids, before)
    await anyio.to_thread.run_sync(_remove_noted, runtime.host, {note: deleted})
    return deleted


async def _delete_on_full_disk(runtime: Runtime, run_ids: Sequence[str], before: datetime | None) -> list[str]:
    """Delete on a full disk: folders first, which needs no space, then a few rows at a time in the freed space."""
    if await _remove_folders(runtime, run_ids):
        return await _delete(runtime, run_ids, before)
    if len(run_ids) == 1:
        raise StoreFull(
            f"The disk is full, and what run {run_ids[0]!r} left was too little room to delete it",
            hint="Delete a file of your own, then run `agent runs gc` again",
        )
    half = len(run_ids) // 2
    first = await _delete(runtime, run_ids[:half], before)
    # The pages of the deleted rows are the space for deleting the others.
    await runtime.store.reclaim()
    return [*first, *await _delete(runtime, run_ids[half:], before)]


async def _remove_folders(runtime: Runtime, run_ids: Sequence[str]) -> int:
    """Remove folders of runs that no process drives and return their number."""
    runs = runtime.host.runs
    found = [run_id for run_id in run_ids if get_folder(runs, run_id, shard="off").exists()]
    for run_id in found:
        if (row := await runtime.store.find_run(run_id)) is not None and not row.driver:
            await anyio.to_thread.run_sync(remove_folder, runs, run_id)
    return sum(not get_folder(runs, run_id, shard="off").exists() for run_id in found)


async def _get_noted(runtime: Runtime) -> dict[Path, list[str]]:
    """Return the notes of interrupted deletions, each with its runs that are no longer in the store."""
    return {
        note: [run_id for run_id in noted if await runtime.store.find_run(run_id) is None]
        for note, noted in read_deletions(runtime.host.runs).items()
    }


def _remove_noted(host: Host, noted: dict[Path, list[str]]) -> None:
    for note, run_ids in noted.items():
        for run_id in run_ids:
            remove_folder(host.runs, run_id)
            remove_deleted(host, run_id)
        note.unlink(missing_ok=True)


async def _remove_leftovers(runtime: Runtime, before: datetime) -> None:
    """Remove local folders of runs that another machine deleted from the shared store."""
    # No other machine deletes runs from SQLite, so a folder without a run may be all that is left of a damaged store.
    # An empty server more likely means a wrong address than that all runs were deleted.
    if runtime.host.settings.store.backend == "sqlite" or not await runtime.store.list_runs(limit=1):
        return
    runs = runtime.host.runs
    for name in await anyio.to_thread.run_sync(_list_untouched, runs, before):
        if await runtime.store.find_run(name) is None:
            await anyio.to_thread.run_sync(remove_folder, runs, name)


def _list_untouched(runs: Path, before: datetime) -> list[str]:
    """List the run folders that were last modified before this time."""
    return [folder.name for folder in iterate_folders(runs) if folder.stat().st_mtime < before.timestamp()]


class Rebuilt(Struct, frozen=True, kw_only=True):
    events: int
    lost: int
    """Number of informational events of the old log, which a journal does not contain."""


async def rebuild_events(runtime: Runtime, run_id: str) -> Rebuilt:
    """Write `events.jsonl` again. Events keep their times if the old log still contains them.

    Raises `LeaseHeld` while a process drives the run.
    """
    # Not renewed, because writing a log takes seconds.
    lease = await runtime.store.take_lease(run_id, owner=runtime.host.owner, seconds=60)
    try:
        entries = await read_entries(runtime.store, run_id)
        get_start(run_id, entries)
        path = runtime.folder(run_id) / FILE_NAME
        # A damaged log is the reason to rebuild it. But a log ahead of the journal proves lost entries: it must stay.
        with suppress(LogError):
            check_journal(path.parent, run_id, entries)
        old = read_intact_events(path)
        draft = path.parent / "rebuilt" / FILE_NAME
        shutil.rmtree(draft.parent, ignore_errors=True)
        teller = JournalReplayer(runtime.host, run_id, _Restamping(JsonlSink.open(draft, clock=SystemClock()), old))
        count = teller.tell(entries)
        teller.close()
        # Atomic, so that a crash leaves either the old log or the complete new one.
        draft.replace(path)
        shutil.rmtree(draft.parent, ignore_errors=True)
    finally:
        await runtime.store.release_lease(lease)
    return Rebuilt(events=count, lost=sum(1 for record in old if not record.entry))


class _Restamping:
    """Restores the original times and spans of events."""

    def __init__(self, sink: Sink, old: Sequence[EventRecord]) -> None:
        self._sink = sink
        self._old: dict[tuple[int, str], list[EventRecord]] = {}
        for record in old:
            self._old.setdefault((record.entry, record.event_type), []).append(record)

    def write(self, record: EventRecord) -> None:
        known = self._old.get((record.entry, record.event_type))
        if known:
            before = known.pop(0)
            record = replace(record, timestamp=before.timestamp, span_id=before.span_id)
        self._sink.write(record)

    def close(self) -> None:
        self._sink.close()
