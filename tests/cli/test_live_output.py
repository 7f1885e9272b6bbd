"""Output of a running command at a terminal: shown live, and kept after an interrupt."""

import os
from pathlib import Path

import pytest
from chat_pty import CTRL_C, CTRL_D, ENTER, ESCAPE, Terminal, agent_terminal, chat_terminal
from model_server import ModelServer, calls, says
from run_workspace import Workspace

PROMPT = "you>"
SECRET = "tok-4f9a81c27be35d60"


def open_gate(folder: Path, name: str) -> int:
    """Create a pipe that a command waits for; writing to it lets the command continue."""
    os.mkfifo(folder / name)
    return os.open(folder / name, os.O_RDWR)


def leave(terminal: Terminal) -> None:
    terminal.type(CTRL_D)
    assert terminal.wait_for_end() == 0


def test_the_last_lines_of_a_running_command_are_shown(workspace: Workspace, model: ModelServer) -> None:
    gate = open_gate(workspace.folder, "gate")
    workspace.write("build.sh", "seq -f 'part %g' 40\nhead -c1 gate >gate.seen\n")
    model.follow(calls("Bash", command="sh build.sh"), says("Built."))
    with chat_terminal(workspace.folder, "--profile", "permissive") as terminal:
        terminal.wait_for(PROMPT)
        terminal.type("Build it" + ENTER)
        shown = terminal.wait_for("part 40")
        assert "part 3\r" not in shown
        os.write(gate, b"x")
        terminal.wait_for("✓ Bash")
        terminal.wait_for("Built.")
        leave(terminal)
    os.close(gate)


def test_a_run_at_a_terminal_shows_the_output_of_a_running_command(workspace: Workspace, model: ModelServer) -> None:
    gate = open_gate(workspace.folder, "gate")
    workspace.write(
        "build.sh", "printf 'loading 10%%\\rloading 20%%\\r\\033[31mred line\\n'\nhead -c1 gate >gate.seen\n"
    )
    model.follow(calls("Bash", command="sh build.sh"), says("Built."))
    with agent_terminal(workspace.folder, "run", "Build it") as terminal:
        terminal.wait_for("loading 20%")
        terminal.wait_for("red line")
        assert b"\x1b[31mred" not in terminal.raw
        os.write(gate, b"x")
        terminal.wait_for("Built.")
        assert terminal.wait_for_end() == 0
    os.close(gate)


def test_a_secret_in_two_pieces_of_output_is_not_shown(
    workspace: Workspace, model: ModelServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SERVICE_TOKEN", SECRET)
    gate = open_gate(workspace.folder, "gate")
    lines = (
        f"printf 'first line\\nkey {SECRET[:9]}'", "printf 'warning\\n' >&2", "head -c1 gate >gate.seen",
        f"printf '{SECRET[9:]}\\nsecond line\\n'", "head -c1 gate >gate.seen",
    )  # fmt: skip
    workspace.write("show.sh", "\n".join(lines) + "\n")
    model.follow(calls("Bash", command="sh show.sh"), says("Shown."))
    with chat_terminal(workspace.folder, "--profile", "permissive") as terminal:
        terminal.wait_for(PROMPT)
        terminal.type("Show it" + ENTER)
        terminal.wait_for("first line")
        os.write(gate, b"x")
        terminal.wait_for("second line")
        os.write(gate, b"x")
        terminal.wait_for("Shown.")
        leave(terminal)
    os.close(gate)
    assert SECRET[:9].encode() not in terminal.raw
    assert SECRET[9:].encode() not in terminal.raw


@pytest.mark.parametrize("key", [CTRL_C, ESCAPE])
def test_after_an_interrupt_the_output_so_far_is_kept(workspace: Workspace, model: ModelServer, key: str) -> None:
    gate = open_gate(workspace.folder, "gate")
    workspace.write("build.sh", "echo compiled half of it\nhead -c1 gate\n")
    model.follow(calls("Bash", command="sh build.sh"), says("I saw half of it."))
    with chat_terminal(workspace.folder, "--profile", "permissive") as terminal:
        terminal.wait_for(PROMPT)
        terminal.type("Build it" + ENTER)
        terminal.wait_for("compiled half of it")
        terminal.type(key)
        stopped = terminal.wait_for("Stopped by you")
        assert "✗ Bash" in stopped
        assert "Stopped before it ended, after" in stopped
        assert "compiled half of it" in stopped.partition("Stopped before it ended")[2]
        terminal.type("What did you see?" + ENTER)
        terminal.wait_for("I saw half of it.")
        leave(terminal)
    os.close(gate)
