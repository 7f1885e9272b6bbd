"""Ctrl-C and SIGTERM: a real process, real signals, a skill script that waits on a pipe. No sleeps."""

import os
import signal
import subprocess
import time
from pathlib import Path

import pytest
from model_server import ModelServer, calls, says
from run_workspace import WAIT, Workspace

pytestmark = pytest.mark.slow


@pytest.fixture
def fifo(workspace: Workspace) -> Path:
    """The pipe that the script of skill `waiter` waits on."""
    workspace.add_skill("waiter", "Wait for somebody.", wait=WAIT)
    path = workspace.folder / "pipe"
    os.mkfifo(path)
    return path


def wait_for_script(fifo: Path) -> int:
    """Wait until the script reads the pipe, and return our end of it."""
    return os.open(fifo, os.O_WRONLY)


def start_waiting(workspace: Workspace, model: ModelServer, fifo: Path, **options: str) -> subprocess.Popen[str]:
    model.follow(calls("script_run", skill_name="waiter", script_name="wait", args=[str(fifo)]), says("Done."))
    return workspace.start("run", "--events", "Wait", **options)


def test_sigterm_lets_the_current_step_finish_and_pauses_the_run(
    workspace: Workspace, model: ModelServer, fifo: Path
) -> None:
    process = start_waiting(workspace, model, fifo)
    pipe = wait_for_script(fifo)
    process.send_signal(signal.SIGTERM)
    _wait_for_event(process, "graceful_shutdown_started")
    os.write(pipe, b"at last")
    os.close(pipe)
    _, err = process.communicate(timeout=100)

    assert process.returncode == 143
    assert workspace.event_types()[-4:] == [
        "signal_received", "graceful_shutdown_started", "skill_step_executed", "run_paused",
    ]  # fmt: skip
    events = workspace.events()
    assert events[-4]["payload"]["signal"] == "SIGTERM"
    assert events[-3]["payload"]["children"] == 1
    assert events[-2]["payload"]["status"] == "succeeded"
    assert events[-1]["payload"]["kind"] == "signal"
    assert f"agent resume {workspace.run_ids()[0]}" in err


def test_a_stopped_run_continues_without_repeating_completed_steps(
    *, workspace: Workspace, model: ModelServer, fifo: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    process = start_waiting(workspace, model, fifo)
    pipe = wait_for_script(fifo)
    process.send_signal(signal.SIGTERM)
    _wait_for_event(process, "graceful_shutdown_started")
    os.write(pipe, b"at last")
    os.close(pipe)
    process.communicate(timeout=100)

    assert workspace.agent("resume", "latest", "--quiet") == 0

    assert capsys.readouterr().out == "Done.\n"
    assert Path(f"{fifo}.effects").read_text() == "x"
    assert "at last" in str(model.received[-1]["messages"])


def test_after_the_grace_period_the_script_is_killed_and_the_run_is_resumable(
    workspace: Workspace, model: ModelServer, fifo: Path
) -> None:
    process = start_waiting(workspace, model, fifo, AGENT_RUNTIME_SIGNAL_GRACE_SECONDS="0.1")
    pipe = wait_for_script(fifo)
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=100)

    assert process.returncode == 130
    _assert_no_reader(pipe)
    interrupted = workspace.events()[-2]["payload"]
    assert (interrupted["status"], interrupted["error_type"]) == ("failed", "interrupted")
    assert interrupted["duration_ms"] > 0
    assert workspace.agent("resume", "latest", "--quiet") == 0
    assert "it may have done part of its work" in str(model.received[-1]["messages"])


def test_a_second_signal_does_not_wait(workspace: Workspace, model: ModelServer, fifo: Path) -> None:
    process = start_waiting(workspace, model, fifo, AGENT_RUNTIME_SIGNAL_GRACE_SECONDS="3600")
    pipe = wait_for_script(fifo)
    process.send_signal(signal.SIGTERM)
    _wait_for_event(process, "graceful_shutdown_started")
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=100)

    assert process.returncode == 143
    _assert_no_reader(pipe)
    assert workspace.event_types()[-5:] == [
        "signal_received", "graceful_shutdown_started", "signal_received", "skill_step_executed", "run_paused",
    ]  # fmt: skip


def test_a_signal_during_a_model_call_pauses_and_resume_repeats_the_turn(
    workspace: Workspace, model: ModelServer
) -> None:
    model.follow(says("Done."))
    model.silent.set()
    process = workspace.start("run", "--events", "Greet", AGENT_RUNTIME_SIGNAL_GRACE_SECONDS="0")
    assert model.asked.wait(60)
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=100)
    model.silent.clear()

    assert process.returncode == 130
    assert workspace.event_types()[-1] == "run_paused"
    assert workspace.agent("resume", "latest", "--quiet") == 0
    assert workspace.events()[-1]["payload"]["turns"] == 1


def _wait_for_event(process: subprocess.Popen[str], name: str) -> None:
    """Wait until stderr contains the text."""
    assert process.stderr is not None
    for line in process.stderr:
        if name in line:
            return
    raise AssertionError(f"the process ended without {name}")


def _assert_no_reader(pipe: int) -> None:
    """Check that the reader of the pipe is gone, so that writing fails."""
    deadline = time.monotonic() + 100
    signal.signal(signal.SIGPIPE, signal.SIG_IGN)
    while time.monotonic() < deadline:
        try:
            os.write(pipe, b"x")
        except BrokenPipeError:
            os.close(pipe)
            return
    raise AssertionError("the script is still there")
