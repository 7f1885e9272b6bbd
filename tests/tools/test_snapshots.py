"""Snapshots detect every change of content, name and mode, even within one second, with few git calls."""

import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from metier.tools.files.snapshots import Snapshots

pytestmark = pytest.mark.skipif(shutil.which("git") is None, reason="git is not installed")


def _count_git(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Install a git that adds a line to the file per call."""
    folder.mkdir()
    calls = folder / "calls"
    program = folder / "git"
    program.write_text(f'#!/bin/sh\necho x >>"{calls}"\nexec "{shutil.which("git")}" "$@"\n')
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(folder))  # alone: folders of the system would be searched first
    return calls


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    folder = tmp_path / "workspace"
    folder.mkdir()
    (folder / "a.txt").write_text("a")
    (folder / "b.txt").write_text("b")
    for file in folder.iterdir():
        os.utime(file, (1_000_000_000, 1_000_000_000))  # git reads a file again that is as young as its index
    return folder


def test_an_unchanged_workspace_needs_one_git_call(
    workspace: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = _count_git(tmp_path / "programs", monkeypatch)
    snapshots = Snapshots(workspace, tmp_path / "kept")
    names = {snapshots.take()}
    before = len(calls.read_text().split())

    names |= {snapshots.take() for _ in range(4)}

    assert len(names) == 1
    assert len(calls.read_text().split()) - before == 4


CHANGES: dict[str, Callable[[Path], object]] = {
    "content": lambda folder: (folder / "a.txt").write_text("z"),
    "new": lambda folder: (folder / "c.txt").write_text("c"),
    "removed": lambda folder: (folder / "b.txt").unlink(),
    "mode": lambda folder: (folder / "a.txt").chmod(0o600),
    "executable": lambda folder: (folder / "a.txt").chmod(0o755),
    "renamed": lambda folder: (folder / "a.txt").rename(folder / "d.txt"),
}


@pytest.mark.parametrize("change", CHANGES)
def test_each_change_has_its_own_tree_id_and_reverting_restores_the_first(
    workspace: Path, tmp_path: Path, change: str
) -> None:
    snapshots = Snapshots(workspace, tmp_path / "kept")
    names = [snapshots.take(), snapshots.take()]
    kept = tmp_path / "copy"
    shutil.copytree(workspace, kept)

    CHANGES[change](workspace)
    names.append(snapshots.take())
    shutil.rmtree(workspace)
    shutil.copytree(kept, workspace)
    names.append(snapshots.take())

    assert names[0] == names[1] == names[3] != names[2]
    assert snapshots.compare(names[1], names[2])


@pytest.mark.parametrize("is_submodule", [False, True])
@pytest.mark.parametrize("setting", ["filter.evil.clean", "core.fsmonitor"])
def test_a_repository_in_the_workspace_starts_no_program(
    workspace: Path, tmp_path: Path, setting: str, is_submodule: bool
) -> None:
    mark = tmp_path / "started"
    nested = workspace / "vendor \udcff"
    nested.mkdir()
    (nested / ".gitattributes").write_text("* filter=evil\n")
    (nested / "a").write_text("1")
    _commit(nested, "a", ".gitattributes")
    if is_submodule:
        _commit(workspace, "a.txt", nested.name)
    _run_git(nested, "config", setting, f"touch {mark}; cat")
    (nested / "a").write_text("2")
    snapshots = Snapshots(workspace, tmp_path / "kept")

    names = {snapshots.take() for _ in range(3)}

    assert len(names) == 1
    assert not mark.exists()
    (workspace / "a.txt").write_text("changed")
    (changed,) = snapshots.compare(names.pop(), snapshots.take())
    assert changed.path == "a.txt"
    assert not mark.exists()


def _commit(folder: Path, *names: str) -> None:
    _run_git(folder, "init", "-q")
    _run_git(folder, "-c", "advice.addEmbeddedRepo=false", "add", *names)
    _run_git(folder, "-c", "user.name=a", "-c", "user.email=a@b.c", "commit", "-qm", "first")


def _run_git(folder: Path, *words: str) -> None:
    subprocess.run(["git", *words], cwd=folder, check=True, capture_output=True, timeout=100)
