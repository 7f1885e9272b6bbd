"""Snapshots of a workspace by the best means that there is: git, else a list of files."""

from collections.abc import Sequence
from pathlib import Path

from metier.tools.files.manifest import PREFIX, ManifestSnapshots
from metier.tools.files.snapshots import Changed, Snapshots, Unavailable


class WorkspaceSnapshots:
    """Takes and compares them; two of different kinds cannot be compared. Every method raises `Unavailable`."""

    def __init__(self, workspace: Path, folder: Path, *, excluded: Sequence[str] = ()) -> None:
        self._by_git = Snapshots(workspace, folder, excluded=excluded)
        self._by_files = ManifestSnapshots(workspace, folder, excluded=excluded)

    def take(self) -> str:
        return self._by_git.take() if self._has_git() else self._by_files.take()

    def compare(self, before: str, after: str) -> list[Changed]:
        kinds = {name.startswith(PREFIX) for name in (before, after)}
        if len(kinds) > 1:
            raise Unavailable("git was installed or removed between the two snapshots")
        return self._by_files.compare(before, after) if kinds == {True} else self._by_git.compare(before, after)

    def _has_git(self) -> bool:
        try:
            self._by_git.find_program()
        except Unavailable:
            return False
        return True
