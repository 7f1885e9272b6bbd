"""Locations of run files: no surprises in a user's folders."""

import subprocess
from pathlib import Path

import pytest
from model_server import ModelServer, says
from run_workspace import Workspace, use_model


def test_a_project_in_git_stays_clean_after_a_run(workspace: Workspace, model: ModelServer) -> None:
    model.follow(says("Done."))
    git = ("git", "-C", str(workspace.folder))
    subprocess.run([*git, "init", "-q"], check=True)
    subprocess.run([*git, "add", "."], check=True)
    before = subprocess.run([*git, "status", "--porcelain", "-uall"], check=True, capture_output=True, text=True).stdout

    assert workspace.agent("run", "say it", "--quiet") == 0

    after = subprocess.run([*git, "status", "--porcelain", "-uall"], check=True, capture_output=True, text=True).stdout
    assert after == before


def test_a_gitignore_deleted_by_the_user_is_not_restored(workspace: Workspace, model: ModelServer) -> None:
    model.follow(says("Done."))
    assert workspace.agent("run", "say it", "--quiet") == 0
    (workspace.folder / "runs/.gitignore").unlink()

    assert workspace.agent("run", "say it again", "--quiet") == 0

    assert not (workspace.folder / "runs/.gitignore").exists()


def test_the_runs_folder_has_a_description_of_its_contents(workspace: Workspace, model: ModelServer) -> None:
    model.follow(says("Done."))
    assert workspace.agent("run", "say it", "--quiet") == 0

    runs = workspace.folder / "runs"
    note = (runs / "README.md").read_text(encoding="utf-8")
    known = {"README.md", ".gitignore", *workspace.run_ids()}
    named = [path.name for path in runs.iterdir() if path.name not in known]
    assert [name for name in named if name.removesuffix("-wal").removesuffix("-shm") not in note] == []


def test_runs_in_the_home_folder_are_stored_in_the_data_folder(
    workspace: Workspace, model: ModelServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    model.follow(says("Done."))
    home = tmp_path / "home"
    (home / ".config/agent").mkdir(parents=True)
    Workspace(home / ".config/agent").configure(model=use_model(model))
    monkeypatch.delenv("XDG_DATA_HOME", raising=False)
    monkeypatch.delenv("XDG_CONFIG_HOME", raising=False)
    monkeypatch.chdir(home)

    assert workspace.agent("run", "say it", "--quiet") == 0

    assert not (home / "runs").exists()
    assert (home / ".local/share/agent/runs/state.db").exists()
    assert workspace.agent("runs", "list") == 0
    assert "say it" in capsys.readouterr().out


def test_existing_runs_in_the_home_folder_are_still_found(
    workspace: Workspace, model: ModelServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model.follow(says("Done."))
    monkeypatch.setenv("HOME", str(workspace.folder))
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    assert workspace.agent("run", "say it", "--quiet") == 0
    assert not (workspace.folder / "runs").exists()

    (workspace.folder / "runs").mkdir()
    (tmp_path / "data/agent/runs/state.db").rename(workspace.folder / "runs/state.db")
    assert workspace.agent("run", "say it", "--quiet") == 0

    assert len(workspace.run_ids()) == 1
