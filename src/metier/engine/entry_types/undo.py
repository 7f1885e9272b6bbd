"""Entries about files: what a step changed, and what an undo restored. Part of the union in `entries`. Pure values."""

from typing import Literal

from metier.messages import Value
from metier.tools.files.file_state import FileState


class FileChange(Value):
    """One path, before and after. None stands for a path at which nothing was."""

    path: str
    """Relative to the workspace."""
    before: FileState | None = None
    after: FileState | None = None


class UndoStarted(Value):
    """The intent: these files are about to become what they were. A kill after it is made good by the next undo."""

    kind: Literal["undo_started"] = "undo_started"
    undo_id: str
    to_step: str
    """The first step whose changes are taken back."""
    changes: tuple[FileChange, ...]
    """As the undo finds the files, and as it leaves them."""
    undone_by: str = ""


class UndoFinished(Value):
    kind: Literal["undo_finished"] = "undo_finished"
    undo_id: str
    files: int = 0
    left_alone: tuple[str, ...] = ()
    """Paths that could not be restored, each with the reason."""
