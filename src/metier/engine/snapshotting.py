"""The seams for snapshots of a workspace around programs, and for the worktrees of child runs."""

from typing import Protocol

from metier.engine.entries.run import RunWorktree
from metier.tools.files.snapshots import Changed


class Snapshotting(Protocol):
    """Takes snapshots of the workspace; `tools.files.snapshots.Snapshots` is one."""

    def take(self) -> str: ...

    def compare(self, before: str, after: str) -> list[Changed]: ...


class Worktrees(Protocol):
    """Reads what runs changed that have a worktree of their own."""

    async def read(self, run_id: str, tree: RunWorktree) -> bytes:
        """A patch for `git apply`, empty where nothing changed. Raises `Unavailable`."""
        ...
