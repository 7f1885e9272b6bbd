"""The folder of all runs, and the folder of each run in it.

The folder of a run is `runs/<run_id>`, or is in the folder of its first day with `logging.shard: day`.
"""

import json
import os
import re
import shutil
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Literal

from metier.runtime.host import Host
from metier.store.failures import StoreDamaged

type Shard = Literal["off", "day"]

DELETING = ".deleting-"
"""Prefix of the note with the runs that are being deleted. It is removed after their folders."""

_STARTED = re.compile(r"(\d{4})(\d{2})(\d{2})-\d{6}-[0-9a-f]+")
_CHILD = re.compile(r"(child|a2a)-([0-9a-f]{2})[0-9a-f]+")
"""Pattern of hashed IDs of runs that another run or a peer requested. Their first two digits shard the folders."""

_GITIGNORE = "# Written by `agent`: runs are records of this machine. Delete this file to keep them in git.\n*\n"
_README = """\
# Runs of `agent`

Written by `agent`; git ignores this folder (see `.gitignore` here). `agent runs list` lists what is in it,
`agent runs gc` deletes old runs.

- `<run id>/`: a run: `events.jsonl` (what happened, for people and programs), `run.json` (a summary), `artifacts/`.
- `state.db` (with `-wal` and `-shm`): the journals. Do not edit it; a run is what stands there.
- `state.db.ballast`: 4 MB that hold nothing. On a full disk they are given up, so that a run can still note that it
  pauses and old runs can be deleted. If you delete the file, it is made again when there is room.
- `chat_history`: what you typed in `agent chat`.

The setting `logging.jsonl_dir` puts this folder elsewhere.
"""
NOTE_NAME = "README.md"


def get_run_folder(host: Host, run_id: str) -> Path:
    """Return the folder of a run. Raises `StoreDamaged`, see `get_folder`."""
    return get_folder(host.runs, run_id, shard=host.settings.logging.shard)


def get_folder(runs: Path, run_id: str, *, shard: Shard) -> Path:
    """Return the folder of a run: the existing one, or the one according to the setting.

    Raises `StoreDamaged` for an ID that is a path, which a run store from a clone may contain.
    """
    if not is_folder_name(run_id):
        raise StoreDamaged(
            f"The run store has a run with the id {run_id!r}, which is not the name of a folder",
            hint="Metier did not write it: delete the run store, or restore it from a backup",
        )
    root = str(runs)  # strings are faster than paths, and each run calls this several times
    flat, sharded = f"{root}/{run_id}", _build_sharded(root, run_id)
    wanted, other = (sharded, flat) if shard == "day" else (flat, sharded)
    # A run keeps its folder when the setting changes.
    is_other = wanted != other and not os.path.exists(wanted) and os.path.exists(other)  # noqa: PTH110
    return Path(other if is_other else wanted)


def iterate_folders(runs: Path) -> Iterator[Path]:
    """Yield every run folder of both layouts, in any order."""
    for path in _iterate(runs):
        if is_run_id(path.name):
            yield path
        elif path.name in ("child", "a2a") or re.fullmatch(r"\d{4}", path.name):
            pattern = "??/??/*-*-*" if path.name.isdecimal() else f"??/{path.name}-*"
            yield from (folder for folder in path.glob(pattern) if is_run_id(folder.name))


def is_run_id(name: str) -> bool:
    return _STARTED.fullmatch(name) is not None or _CHILD.fullmatch(name) is not None


def is_folder_name(run_id: str) -> bool:
    """Return True for a plain name, not a path that leads elsewhere."""
    return run_id not in ("", ".", "..") and not {"/", os.sep, "\0"}.intersection(run_id)


def remove_folder(runs: Path, run_id: str) -> None:
    """Remove the folder of a run, and the folder of its day if that is empty afterwards."""
    if not is_folder_name(run_id):
        return  # never delete by an ID that is a path
    shutil.rmtree(runs / run_id, ignore_errors=True)
    sharded = Path(_build_sharded(str(runs), run_id))
    if sharded == runs / run_id or not sharded.parent.exists():
        return
    shutil.rmtree(sharded, ignore_errors=True)
    with suppress(OSError):  # stops at the first folder that isn't empty
        for folder in sharded.parents:
            if folder == runs:
                break
            folder.rmdir()


def read_deletions(runs: Path) -> dict[Path, list[str]]:
    """Read the notes of running or interrupted deletions, each with the runs that it names."""
    found: dict[Path, list[str]] = {}
    for note in runs.glob(f"{DELETING}*.json"):
        try:
            found[note] = [str(run_id) for run_id in json.loads(note.read_bytes())]
        except (OSError, ValueError):  # the note is incomplete, so nothing was deleted yet
            found[note] = []
    return found


def _build_sharded(runs: str, run_id: str) -> str:
    if started := _STARTED.fullmatch(run_id):
        return "/".join((runs, *started.groups(), run_id))
    if child := _CHILD.fullmatch(run_id):
        return f"{runs}/{child[1]}/{child[2]}/{run_id}"
    return f"{runs}/{run_id}"


def _iterate(folder: Path) -> Iterator[Path]:
    with suppress(OSError):
        yield from folder.iterdir()


def prepare_runs_folder(folder: Path) -> None:
    """Create the folder if it is missing. A deleted `.gitignore` is not written again.

    Raises `OSError` if the folder can't be created. Errors in writing the notes are ignored.
    """
    folder.mkdir(parents=True, exist_ok=True)
    note = folder / NOTE_NAME
    with suppress(OSError):
        if note.exists():
            return
        _write_new(folder / ".gitignore", _GITIGNORE)
        # Written last: its existence means that `.gitignore` was written before, so a deleted one stays deleted.
        _write_new(note, _README)


def _write_new(path: Path, text: str) -> None:
    with suppress(FileExistsError), path.open("x", encoding="utf-8") as stream:
        stream.write(text)
