"""Signals at a real terminal: Ctrl-C at a prompt and during a reply, a terminal that closes, Ctrl-Z and its return."""

import signal
import sqlite3
import subprocess
import time
from pathlib import Path
from threading import Event

import pytest
from chat_pty import AGENT, CTRL_BACKSLASH, CTRL_C, Terminal, agent_terminal
from model_server import ModelServer, calls, says
from run_workspace import Workspace

from metier.store.machine import SystemMachine

AT_ONCE = 40.0
"""Half of the grace period of these tests: a process that waits for it takes longer, even on a busy machine."""
LONG = f"The first half\n{'of a long answer\n' * 200}end of what came"
GUARDED = ("--profile", "guarded")


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A grace period that no test would sit through."""
    monkeypatch.setenv("AGENT_RUNTIME_SIGNAL_GRACE_SECONDS", "80")


def end_after(terminal: Terminal, keys: str) -> tuple[int, float]:
    """The exit code, and the seconds until the process had ended."""
    terminal.type(keys)
    started = time.monotonic()
    code = terminal.wait_for_end()
    return code, time.monotonic() - started


def find_pause(workspace: Workspace) -> str:
    return [event for event in workspace.events() if event["event_type"] == "run_paused"][-1]["payload"]["kind"]


@pytest.mark.usefixtures("patient")
def test_ctrl_c_at_the_approval_prompt_ends_at_once_and_leaves_the_question_open(
    workspace: Workspace, model: ModelServer
) -> None:
    model.follow(calls("Bash", command="touch made"), says("Done."))
    with agent_terminal(workspace.folder, "run", "Make it", *GUARDED, is_anew=True) as terminal:
        terminal.wait_for("[?]: ")
        code, seconds = end_after(terminal, CTRL_C)

    assert (code, find_pause(workspace)) == (3, "approval")
    assert seconds < AT_ONCE
    assert not (workspace.folder / "made").exists()


@pytest.mark.usefixtures("patient")
def test_ctrl_c_during_a_reply_ends_at_once_and_keeps_what_had_come(workspace: Workspace, model: ModelServer) -> None:
    model.follow(says(LONG))
    model.halting.set()
    with agent_terminal(workspace.folder, "run", "Write") as terminal:
        assert model.asked.wait(60)
        terminal.wait_for("of a long answer")  # the screen shows the end of what came
        terminal.type(CTRL_C)
        terminal.wait_for("press Ctrl-C again")
        terminal.wait_for("end of what came")
        code, seconds = end_after(terminal, "")
    model.released.set()

    assert code == 130
    assert seconds < AT_ONCE
    events = workspace.events()
    assert [event["event_type"] for event in events[-4:]] == [
        "signal_received", "graceful_shutdown_started", "llm_request_failed", "run_paused",
    ]  # fmt: skip
    assert events[-2]["payload"]["reason"] == "interrupted"
    assert events[-2]["payload"]["partial_text"].endswith("end of what came")


@pytest.mark.usefixtures("patient")
def test_ctrl_c_during_the_reply_of_a_child_ends_at_once(workspace: Workspace, model: ModelServer) -> None:
    workspace.write(".agent/tasks/note/TASK.md", "---\nname: note\n---\n\nWrite a note.\n")
    model.follow(says("Half a note"))
    model.silent.set()
    with agent_terminal(workspace.folder, "task", "run", "note") as terminal:
        assert model.asked.wait(60)
        code, seconds = end_after(terminal, CTRL_C)
    model.released.set()

    assert code == 130
    assert seconds < AT_ONCE


@pytest.mark.usefixtures("patient")
def test_ctrl_c_during_a_command_ends_the_command_at_once_and_pauses_the_run(
    workspace: Workspace, model: ModelServer
) -> None:
    model.follow(calls("Bash", command="echo $$ > began; exec sleep 600"), says("Done."))
    with agent_terminal(workspace.folder, "run", "Wait") as terminal:
        _wait_for_file(workspace.folder / "began")
        code, seconds = end_after(terminal, CTRL_C)

    assert code == 130
    assert seconds < AT_ONCE
    assert not _is_alive(int((workspace.folder / "began").read_text()))
    model.follow(says("Done."))
    assert workspace.agent("resume", "latest", "--quiet") == 0


@pytest.mark.usefixtures("patient")
def test_the_quit_key_pauses_the_run(workspace: Workspace, model: ModelServer) -> None:
    model.follow(says("Done."))
    model.silent.set()
    with agent_terminal(workspace.folder, "run", "Write") as terminal:
        assert model.asked.wait(60)
        code, seconds = end_after(terminal, CTRL_BACKSLASH)
    model.silent.clear()
    model.released.set()

    assert (code, find_pause(workspace)) == (131, "signal")
    assert seconds < AT_ONCE
    assert workspace.agent("resume", "latest", "--quiet") == 0


@pytest.mark.usefixtures("patient")
def test_a_terminal_that_closes_pauses_the_run(workspace: Workspace, model: ModelServer) -> None:
    model.follow(says("Done."))
    model.silent.set()
    with agent_terminal(workspace.folder, "run", "Write", is_anew=True) as terminal:
        assert model.asked.wait(60)
        terminal.hang_up()
        code = terminal.process.wait(60)
    model.silent.clear()
    model.released.set()

    assert code == 129
    assert find_pause(workspace) == "signal"
    assert workspace.agent("resume", "latest", "--quiet") == 0


def test_a_run_started_with_nohup_goes_on_when_its_terminal_closes(workspace: Workspace, model: ModelServer) -> None:
    model.follow(says("Done."))
    model.silent.set()
    process = subprocess.Popen(
        ["nohup", str(AGENT), "run", "Write"],
        cwd=workspace.folder, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert model.asked.wait(60)
    process.send_signal(signal.SIGHUP)
    model.silent.clear()
    model.released.set()
    out, _ = process.communicate(timeout=60)

    assert (process.returncode, out) == (0, "Done.\n")


def test_a_stopped_run_keeps_its_lease_and_goes_on(
    workspace: Workspace, model: ModelServer, capsys: pytest.CaptureFixture[str]
) -> None:
    model.follow(says("Done."))
    model.silent.set()
    process = workspace.start_anew("run", "Write")
    assert model.asked.wait(60)
    process.send_signal(signal.SIGTSTP)
    _wait_until_stopped(process.pid)

    assert _find_lease_seconds(workspace) > 600
    assert workspace.agent("resume", "latest") == 10
    assert "drives run" in capsys.readouterr().err
    model.silent.clear()
    model.released.set()
    process.send_signal(signal.SIGCONT)
    out, _ = process.communicate(timeout=60)
    assert (process.returncode, out) == (0, "Done.\n")


def test_a_run_whose_stopped_process_was_killed_can_be_taken_over(workspace: Workspace, model: ModelServer) -> None:
    model.follow(says("Done."))
    model.silent.set()
    process = workspace.start_anew("run", "Write")
    assert model.asked.wait(60)
    process.send_signal(signal.SIGTSTP)
    _wait_until_stopped(process.pid)
    process.kill()
    process.communicate(timeout=60)
    model.silent.clear()
    model.released.set()

    assert workspace.agent("resume", "latest", "--quiet") == 0


def _wait_for_file(path: Path) -> None:
    until = time.monotonic() + 60
    while not (path.exists() and path.read_text().strip()):
        assert time.monotonic() < until, f"{path.name} was not made"
        Event().wait(0.01)


def _is_alive(pid: int) -> bool:
    return Path(f"/proc/{pid}").exists()


def _wait_until_stopped(pid: int) -> None:
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        if Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "T":
            return
        Event().wait(0.01)
    raise AssertionError("the process was not stopped")


def _find_lease_seconds(workspace: Workspace) -> float:
    with sqlite3.connect(workspace.folder / "runs" / "state.db") as connection:
        (until,) = connection.execute("SELECT until FROM leases WHERE owner <> ''").fetchone()
    return until - SystemMachine().uptime()
