"""Git worktrees for runs that work apart from each other: made as the workspace is now, compared, removed.

The repository gets an entry in its list of worktrees and nothing else: no branch, no commit. Its hooks, filters and
line-end conversions do not run; a worktree holds the bytes that the workspace holds, also what is not committed.
Ignored files are left out.
"""

import os
import shutil
import subprocess
from contextlib import suppress
from pathlib import Path

from metier.dataclass import dataclass
from metier.skills.trusted_programs import build_trusted_environment
from metier.tools.files.snapshots import MAX_SECONDS, Snapshots, Unavailable, find_git, find_repository

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
        _run_git(workspace, "worktree", "add", "--detach", "--no-checkout", str(self.tree), "HEAD")
        source.write_out(held, self.tree)
        # The index of a new worktree is empty; with this one git shows in it what it shows in the workspace.
        _run_git(self.tree, "read-tree", "HEAD")
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
            _run_git(workspace, "worktree", "remove", "--force", str(self.tree))
        shutil.rmtree(self.folder, ignore_errors=True)

    def _open(self) -> Snapshots:
        return Snapshots(self.tree, self.folder / SNAPSHOTS)


def _run_git(folder: Path, *args: str) -> None:
    environment = {
        **build_trusted_environment(os.environ, writable=(folder,), names=("TMPDIR", "SYSTEMROOT", "TEMP")),
        "HOME": os.devnull,
        "GIT_CONFIG_GLOBAL": os.devnull,
        "GIT_CONFIG_NOSYSTEM": "1",
        "GIT_NO_REPLACE_OBJECTS": "1",
        "LC_ALL": "C",
    }
    settings = ("core.hooksPath=/dev/null", "core.fsmonitor=false", "gc.auto=0", f"safe.directory={folder}")
    command = [find_git(folder), *(word for setting in settings for word in ("-c", setting)), *args]
    try:
        done = subprocess.run(
            command, cwd=folder, env=environment, capture_output=True, timeout=MAX_SECONDS, check=False
        )
    except subprocess.TimeoutExpired as error:
        raise Unavailable(f"it took longer than {MAX_SECONDS:g} s") from error
    except OSError as error:
        raise Unavailable(f"git cannot be run: {error.strerror}") from error
    if done.returncode:
        said = done.stderr.decode("utf-8", "replace").strip().splitlines()
        raise Unavailable(f"git failed: {said[-1] if said else done.returncode}")
