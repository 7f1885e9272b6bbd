"""Ctrl-C always returns to the prompt, and an idle chat uses no processor time."""

import os
import time
from pathlib import Path
from threading import Event

import pytest
from chat_pty import CTRL_C, CTRL_D, ENTER, chat_terminal
from model_server import ModelServer, calls, says
from run_workspace import Workspace

PROMPT = "you>"
IDLE_SECONDS = 2.0


def test_ctrl_c_returns_to_the_prompt_while_a_model_hangs(workspace: Workspace, model: ModelServer) -> None:
    model.follow(says("Late."))
    model.silent.set()
    with chat_terminal(workspace.folder) as terminal:
        terminal.wait_for(PROMPT)
        terminal.type("Think" + ENTER)
        assert model.asked.wait(60)
        terminal.type(CTRL_C)
        terminal.wait_for("Stopped by you")
        terminal.wait_for(PROMPT)
        model.released.set()
        terminal.type(CTRL_D)
        assert terminal.wait_for_end() == 0


def test_ctrl_c_kills_a_command_that_ignores_it(workspace: Workspace, model: ModelServer) -> None:
    model.follow(calls("Bash", command="trap '' TERM INT; touch begun; sleep 3600 & wait; sleep 3600"), says("Late."))
    with chat_terminal(workspace.folder, "--profile", "permissive") as terminal:
        terminal.wait_for(PROMPT)
        terminal.type("Wait" + ENTER)
        terminal.wait_for("sleep 3600")
        deadline = time.monotonic() + 100
        while not (workspace.folder / "begun").exists() and time.monotonic() < deadline:
            Event().wait(0.02)
        terminal.type(CTRL_C)
        terminal.wait_for("Stopped by you")
        terminal.wait_for(PROMPT)
        terminal.type(CTRL_D)
        assert terminal.wait_for_end() == 0


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="the time of a process is read from /proc")
def test_an_idle_chat_uses_no_processor_time(workspace: Workspace, model: ModelServer) -> None:
    model.follow(says("Here I am."))
    with chat_terminal(workspace.folder) as terminal:
        terminal.wait_for(PROMPT)
        terminal.type("Hello" + ENTER)
        terminal.wait_for("Here I am.")
        terminal.wait_for("cost unknown")
        deadline = time.monotonic() + 100
        while measure_idle_cpu(terminal.process.pid) > 0.05 * IDLE_SECONDS:
            assert time.monotonic() < deadline, "it is never idle"
        terminal.type(CTRL_D)
        assert terminal.wait_for_end() == 0


def measure_idle_cpu(pid: int) -> float:
    """Measure the processor time of a process while the user is idle."""
    before = read_cpu_seconds(pid)
    Event().wait(IDLE_SECONDS)
    return read_cpu_seconds(pid) - before


def read_cpu_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
