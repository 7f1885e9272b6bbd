"""Worktrees of several processes in one repository."""

import shutil
import subprocess
from concurrent.futures import ThreadPoolExecutor
from itertools import repeat
from pathlib import Path

import pytest
from filelock import FileLock

from metier.tools.files import snapshots
from metier.tools.files.snapshots import LOCK, Unavailable, Worktree

pytestmark = pytest.mark.skipif(shutil.which("git") is None, reason="git is not installed")


def git(folder: Path, *words: str) -> str:
    done = subprocess.run(["git", *words], cwd=folder, capture_output=True, text=True, check=True)
    return done.stdout


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    folder = tmp_path / "repository"
    folder.mkdir()
    git(folder, "init", "-q")
    git(folder, "-c", "user.name=Kim", "-c", "user.email=kim@example.org", "commit", "-qm", "first", "--allow-empty")
    return folder


def locate(repository: Path, name: str) -> Worktree:
    return Worktree(repository.parent / "home/worktrees" / name)


def test_worktrees_can_be_created_and_removed_at_the_same_time(repository: Path) -> None:
    worktrees = [locate(repository, f"run-{number}") for number in range(24)]

    with ThreadPoolExecutor(len(worktrees)) as threads:
        list(threads.map(Worktree.make, worktrees, repeat(repository)))
        assert git(repository, "worktree", "list").count("\n") == 1 + len(worktrees)
        list(threads.map(Worktree.remove, worktrees, repeat(repository)))

    assert git(repository, "worktree", "list").count("\n") == 1


def test_a_worktree_waits_for_the_process_that_changes_the_list(
    repository: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(snapshots, "LOCK_SECONDS", 0)
    worktree = locate(repository, "run")

    with (
        FileLock(repository.parent / "home" / LOCK),
        pytest.raises(Unavailable, match="another process is creating or removing a worktree"),
    ):
        worktree.make(repository)

    worktree.make(repository)
    assert (worktree.tree / ".git").is_file()


def test_an_entry_of_a_killed_git_does_not_prevent_worktrees(repository: Path) -> None:
    killed = locate(repository, "killed")
    entry = repository / ".git/worktrees/tree"
    entry.mkdir(parents=True)
    for name, content in (("locked", "initializing"), ("gitdir", f"{killed.tree}/.git\n"), ("commondir", "")):
        (entry / name).write_text(content)

    locate(repository, "run").make(repository)

    assert git(repository, "worktree", "list").count("\n") == 2


def test_a_damaged_entry_of_another_program_is_kept(repository: Path) -> None:
    entry = repository / ".git/worktrees/feature"
    entry.mkdir(parents=True)
    for name, content in (("locked", "kept"), ("gitdir", "/elsewhere/feature/.git\n"), ("commondir", "")):
        (entry / name).write_text(content)

    with pytest.raises(Unavailable, match=r"git failed: fatal: failed to read \.git/worktrees/feature/commondir"):
        locate(repository, "run").make(repository)

    assert entry.is_dir()
