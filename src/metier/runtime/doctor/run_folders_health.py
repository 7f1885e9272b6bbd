"""Runs and their folders, compared: a folder whose run the store does not know, a run whose folder is gone.

A database server may know runs of other machines, whose folders are there; and it may have lost runs as a file may.
"""

import heapq
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from metier.runtime.doctor.finding import Finding
from metier.runtime.records.run_folders import find_folder, iterate_folders, read_deletions
from metier.store.sqlite.health import list_newest_runs
from metier.telemetry.jsonl import FILE_NAME

MOST = 20_000
"""How many of the newest are compared, of folders as of runs."""
_NAMED = 3


def list_newest_folders(runs: Path) -> list[str]:
    """Names of run folders in which a run told of itself: a start that was killed leaves an empty one."""
    names = heapq.nlargest(MOST, (folder.name for folder in iterate_folders(runs)))
    return [name for name in names if _has_told(runs, name)]


def examine_lost(runs: Path, folders: Sequence[str], known: Iterable[str]) -> Iterator[Finding]:
    """Folders without a run."""
    deleted = {run_id for noted in read_deletions(runs).values() for run_id in noted}
    lost = sorted(set(folders) - set(known) - deleted)
    if not lost:
        yield Finding(area="store", name="orphans", state="ok", detail=f"{len(folders)} run folders, each with its run")
        return
    hint = (
        "Restore the run store from a backup; if you deleted these runs, delete their folders too"
        f" (agent runs show {lost[-1]} says how far each got)"
    )
    detail = f"{_name(lost)}: a folder, but no run in the store"
    yield Finding(area="store", name="orphans", state="problem", detail=detail, hint=hint)


def examine_bare(runs: Path, database: Path) -> Iterator[Finding]:
    """Runs of a database of this machine without a folder."""
    known = list_newest_runs(database, most=MOST)
    bare = sorted(run_id for run_id in known if not find_folder(runs, run_id, shard="off").exists())
    if bare:
        hint = f"Write its event log anew with `agent runs rebuild {bare[-1]}`; steps that it began are asked about"
        detail = f"{_name(bare)}: a run in the store, but no folder"
        yield Finding(area="store", name="bare runs", state="problem", detail=detail, hint=hint)


def _has_told(runs: Path, name: str) -> bool:
    return (find_folder(runs, name, shard="off") / FILE_NAME).exists()


def _name(run_ids: Sequence[str]) -> str:
    newest = ", ".join(reversed(run_ids[-_NAMED:]))
    return f"{len(run_ids)} ({newest}{', …' if len(run_ids) > _NAMED else ''})"
