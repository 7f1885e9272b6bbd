"""Git worktrees for runs that work apart from each other: made as the workspace is now, compared, removed.

The repository gets an entry in its list of worktrees and nothing else: no branch, no commit. Its hooks, filters and
line-end conversions do not run; a worktree holds the bytes that the workspace holds, also what is not committed.
Ignored files are left out.
"""

import shutil
from contextlib import suppress
from pathlib import Path

from metier.dataclass import dataclass
from metier.tools.files.snapshots import Snapshots, Unavailable, find_repository, run_git

TREE, SNAPSHOTS, SOURCE = "tree", "snapshots", "source"


@dataclass(frozen=True, slots=True)
class Worktree:
    """One below a folder of its own, beside the snapshots that it is compared by. Every method blocks."""

    folder: Path

    @property
    def tree(self) -> Path:
        return self.folder / TREE

    def make(self, workspace: Path, *, excluded: tuple[str, ...] = ()) -> str:
        """The name of what it holds at first. One that a killed process left half made is made anew.

        Raises `Unavailable`.
        """
        if find_repository(workspace) is None:
            raise Unavailable("the workspace is no git repository")
        self.remove(workspace)
        self.folder.mkdir(parents=True)
        source = Snapshots(workspace, self.folder / SOURCE, excluded=excluded)
        held = source.take()
        run_git(workspace, ("worktree", "add", "--detach", "--no-checkout", str(self.tree), "HEAD"))
        source.write_out(held, self.tree)
        # The index of a new worktree is empty; with this one git shows in it what it shows in the workspace.
        run_git(self.tree, ("read-tree", "HEAD"))
        return self._open().take()

    def diff(self, base: str) -> bytes:
        """What was changed since it was made, as a patch for `git apply`. Raises `Unavailable`."""
        snapshots = self._open()
        return snapshots.diff(base, snapshots.take())

    def remove(self, workspace: Path) -> None:
        """Also where there is none."""
        if not self.folder.exists():
            return
        with suppress(Unavailable):  # it was never registered, or the repository is gone
            run_git(workspace, ("worktree", "remove", "--force", str(self.tree)))
        shutil.rmtree(self.folder, ignore_errors=True)

    def _open(self) -> Snapshots:
        return Snapshots(self.tree, self.folder / SNAPSHOTS)
