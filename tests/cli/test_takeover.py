"""A run continued without access to the notes of its last step: the step is asked about, not repeated."""

import os
import shutil
import signal
from pathlib import Path

import pytest
from model_server import ModelServer, calls, says
from run_workspace import WAIT, Workspace, close_after_reader

pytestmark = pytest.mark.slow

type Capture = pytest.CaptureFixture[str]

PAUSED = 4


@pytest.fixture
def fifo(workspace: Workspace, tmp_path: Path) -> Path:
    """The pipe that the script of skill `waiter` waits on, outside any workspace."""
    workspace.add_skill("waiter", "Wait for somebody.", wait=WAIT)
    path = tmp_path / "pipe"
    os.mkfifo(path)
    return path


def kill_in_the_script(workspace: Workspace, model: ModelServer, fifo: Path) -> str:
    """Start a run and kill the command after the script's effect. Return the run's ID."""
    model.follow(calls("script_run", skill_name="waiter", script_name="wait", args=[str(fifo)]), says("Done."))
    process = workspace.start("run", "Wait")
    pipe = os.open(fifo, os.O_WRONLY)
    process.send_signal(signal.SIGKILL)
    process.communicate(timeout=100)
    close_after_reader(pipe)
    return workspace.run_ids()[0]


def test_a_step_of_a_run_whose_folder_was_deleted_is_asked_about(
    *, workspace: Workspace, model: ModelServer, fifo: Path, capsys: Capture
) -> None:
    run_id = kill_in_the_script(workspace, model, fifo)
    shutil.rmtree(workspace.folder / "runs" / run_id)

    assert workspace.agent("resume", run_id) == PAUSED

    told = capsys.readouterr()
    assert "cannot be seen from here" in told.out + told.err
    assert Path(f"{fifo}.effects").read_text() == "x"
    assert workspace.agent("resume", run_id, "--answer", "done", "--quiet") == 0
    assert capsys.readouterr().out == "Done.\n"
    assert Path(f"{fifo}.effects").read_text() == "x"


def test_a_step_started_in_another_folder_on_the_same_postgres_is_asked_about(
    *,
    workspace: Workspace,
    model: ModelServer,
    fifo: Path,
    tmp_path: Path,
    postgres_url: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: Capture,
) -> None:
    monkeypatch.setenv("STATE_STORE_BACKEND", "postgres")
    monkeypatch.setenv("DATABASE_URL", postgres_url)
    other = tmp_path / "other"
    shutil.copytree(workspace.folder, other)
    run_id = kill_in_the_script(workspace, model, fifo)
    monkeypatch.chdir(other)

    assert workspace.agent("resume", run_id) == PAUSED

    told = capsys.readouterr()
    assert "cannot be seen from here" in told.out + told.err
    assert Path(f"{fifo}.effects").read_text() == "x"
    assert workspace.agent("resume", run_id, "--answer", "done", "--quiet") == 0
    assert capsys.readouterr().out == "Done.\n"
    assert Path(f"{fifo}.effects").read_text() == "x"
