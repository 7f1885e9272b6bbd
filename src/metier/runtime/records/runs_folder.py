"""The folder of runs: made with a `.gitignore` of its own and a note that says what lies in it."""

from contextlib import suppress
from pathlib import Path

_IGNORE = "# Written by `agent`: runs are records of this machine. Delete this file to keep them in git.\n*\n"
_NOTE = """\
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


def prepare_runs_folder(folder: Path) -> None:
    """Make it where it is missing. A `.gitignore` that a person deleted is not written again.

    Raises `OSError` where the folder cannot be made; that the note cannot be written is no reason to stop.
    """
    folder.mkdir(parents=True, exist_ok=True)
    note = folder / NOTE_NAME
    with suppress(OSError):
        if note.exists():
            return
        _write_new(folder / ".gitignore", _IGNORE)
        # Last: its presence says that the other file was written once.
        _write_new(note, _NOTE)


def _write_new(path: Path, text: str) -> None:
    with suppress(FileExistsError), path.open("x", encoding="utf-8") as stream:
        stream.write(text)
