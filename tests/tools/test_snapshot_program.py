"""The git of a run's snapshots is searched for once, and again after it is removed or PATH changes."""

import shutil
from pathlib import Path

import pytest

from metier.tools.files.snapshots import Snapshots, Unavailable

pytestmark = pytest.mark.skipif(shutil.which("git") is None, reason="git is not installed")


def _link_git(folder: Path) -> Path:
    folder.mkdir()
    program = folder / "git"
    program.symlink_to(str(shutil.which("git")))
    return program


def test_a_removed_git_is_searched_for_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = _link_git(tmp_path / "first"), _link_git(tmp_path / "second")
    monkeypatch.setenv("PATH", f"{first.parent}:{second.parent}")
    workspace = tmp_path / "workspace"
    workspace.mkdir()
    snapshots = Snapshots(workspace, tmp_path / "kept")

    assert snapshots.get_git().path == str(first)
    first.unlink()
    assert snapshots.get_git().path == str(second)
    second.unlink()
    with pytest.raises(Unavailable, match="not installed"):
        snapshots.get_git()


def test_a_changed_path_is_searched_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = _link_git(tmp_path / "first"), _link_git(tmp_path / "second")
    workspace = tmp_path / "workspace"
    workspace.mkdir()
    snapshots = Snapshots(workspace, tmp_path / "kept")
    monkeypatch.setenv("PATH", str(first.parent))
    before = snapshots.take()
    monkeypatch.setenv("PATH", str(second.parent))

    assert snapshots.get_git().path == str(second)
    assert snapshots.get_git().environment["PATH"] == str(second.parent)
    assert snapshots.take() == before
