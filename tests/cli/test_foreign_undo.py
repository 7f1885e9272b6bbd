"""Undo writes files: only a run started on this machine determines which, and their content."""

import subprocess
from pathlib import Path

import pytest
from model_server import ModelServer, calls, says
from msgspec.structs import replace
from run_workspace import QUICK, Workspace, use_model

from metier.engine.entries.entry import parse_entry, render_entry
from metier.engine.entries.step import StepFinished
from metier.runtime.history.archive import load_archive, render_archive

type Capture = pytest.CaptureFixture[str]

HOOK = "#!/bin/sh\ntouch ran\n"


def make_archive(workspace: Workspace, model: ModelServer, tmp_path: Path) -> Path:
    """Create an archive of a run that removed a file, renamed afterwards: its undo would create that file."""
    workspace.configure(model=use_model(model), runtime={**QUICK, "profile": "permissive"})
    workspace.write("hook.sh", HOOK)
    model.follow(calls("Bash", command="rm hook.sh"), says("Done."))
    assert workspace.agent("run", "Tidy up", "-q") == 0
    file = tmp_path / "run.metier-run"
    assert workspace.agent("runs", "export", "latest", "--exact", "-o", str(file)) == 0
    archive = load_archive(file)
    assert any(getattr(entry, "changes", ()) for entry in archive.entries)
    last = max(number for number, entry in enumerate(archive.entries) if isinstance(entry, StepFinished))
    renamed = tuple(
        parse_entry(render_entry(entry).replace(b"hook.sh", b".git/hooks/post-checkout"))
        for entry in archive.entries[: last + 1]
    )
    file.write_bytes(render_archive(replace(archive, entries=renamed, events=b"")))
    return file


@pytest.fixture
def imported(
    workspace: Workspace, model: ModelServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> Workspace:
    """Another user's folder that contains the imported run."""
    file = make_archive(workspace, model, tmp_path)
    folder, home = tmp_path / "own", tmp_path / "own-home"
    folder.mkdir()
    home.mkdir()
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.chdir(folder)
    own = Workspace(folder)
    own.configure(model=use_model(model), runtime={**QUICK, "profile": "permissive"})
    subprocess.run(["git", "init", "-q"], check=True)
    assert own.agent("runs", "import", str(file)) == 0
    capsys.readouterr()
    return own


@pytest.mark.parametrize("words", [[], ["--yes"], ["--dry-run"]])
def test_undoing_an_imported_run_writes_nothing(imported: Workspace, words: list[str], capsys: Capture) -> None:
    code = imported.agent("undo", "latest", *words)

    assert code == 2
    assert "was not started here" in capsys.readouterr().err
    assert not (imported.folder / ".git/hooks/post-checkout").exists()


def test_changes_of_an_imported_run_can_still_be_shown(imported: Workspace, capsys: Capture) -> None:
    assert imported.agent("runs", "show", "latest") == 0

    assert "rm .git/hooks/post-checkout" in capsys.readouterr().out


def test_only_local_changes_of_a_continued_imported_run_are_undone(imported: Workspace, model: ModelServer) -> None:
    model.follow(calls("Write", path="made.txt", content="mine"), says("Done."))
    assert imported.agent("resume", "latest", "-q") == 0
    assert (imported.folder / "made.txt").exists()

    assert imported.agent("undo", "latest", "--yes") == 0

    assert not (imported.folder / "made.txt").exists()
    assert not (imported.folder / ".git/hooks/post-checkout").exists()
