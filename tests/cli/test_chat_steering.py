"""Messages that a user sends while a turn is running: they steer it, wait for its end, and survive a kill."""

import json
import os
from pathlib import Path
from typing import Any

import pytest
from chat_pty import CTRL_D, ENTER, Terminal, chat_terminal
from model_server import ModelServer, calls, says
from run_workspace import Workspace, use_model

pytestmark = pytest.mark.slow

PROMPT = "you>"


def open_gate(folder: Path) -> int:
    """Create a pipe that the command `head -c1 gate` waits for."""
    os.mkfifo(folder / "gate")
    return os.open(folder / "gate", os.O_RDWR)


def list_user_texts(request: dict[str, Any]) -> list[str]:
    return [str(message["content"]) for message in request["messages"] if message["role"] == "user"]


def leave(terminal: Terminal) -> None:
    terminal.type(CTRL_D)
    assert terminal.wait_for_end() == 0


def test_a_message_sent_during_a_turn_is_added_to_its_next_request(workspace: Workspace, model: ModelServer) -> None:
    gate = open_gate(workspace.folder)
    workspace.write("wait.sh", "echo waiting here\nhead -c1 gate >gate.seen\n")
    model.follow(calls("Bash", command="sh wait.sh"), calls("Glob", pattern="*.sh"), says("In blue, then."))
    with chat_terminal(workspace.folder, "--profile", "permissive") as terminal:
        terminal.wait_for(PROMPT)
        terminal.type("Paint the house" + ENTER)
        terminal.wait_for("waiting here")
        terminal.type("Make it blue" + ENTER)
        terminal.wait_for("queued: Make it blue")
        os.write(gate, b"x")
        shown = terminal.wait_for("In blue, then.")
        assert "▌ Make it blue" in shown
        leave(terminal)
    os.close(gate)

    (run_id,) = workspace.run_ids()
    assert [len(model.received), "Make it blue" in str(model.received[0])] == [3, False]
    assert list_user_texts(model.received[1])[-1].endswith("Make it blue")
    assert model.received[2]["messages"][: len(model.received[1]["messages"])] == model.received[1]["messages"]
    (added,) = [event for event in workspace.events() if event["event_type"] == "user_message_added"]
    assert added["payload"]["text"] == "Make it blue"
    assert workspace.agent("replay", run_id, "--execute") == 0


def test_the_settings_can_hold_a_message_until_the_end_of_the_turn(workspace: Workspace, model: ModelServer) -> None:
    workspace.configure(model=use_model(model), chat={"while_working": "queue"}, runtime={"profile": "permissive"})
    gate = open_gate(workspace.folder)
    workspace.write("wait.sh", "echo waiting here\nhead -c1 gate >gate.seen\n")
    model.follow(calls("Bash", command="sh wait.sh"), says("Painted."), says("Now it is blue."))
    with chat_terminal(workspace.folder) as terminal:
        terminal.wait_for(PROMPT)
        terminal.type("Paint the house" + ENTER)
        terminal.wait_for("waiting here")
        terminal.type("Make it blue" + ENTER)
        terminal.wait_for("queued: Make it blue")
        os.write(gate, b"x")
        terminal.wait_for("Painted.")
        terminal.wait_for("Now it is blue.")
        leave(terminal)
    os.close(gate)
    assert "Make it blue" not in str(model.received[1])
    assert len(workspace.run_ids()) == 2


def test_a_queued_message_survives_a_kill_and_reaches_the_continued_turn(
    workspace: Workspace, model: ModelServer
) -> None:
    gate = open_gate(workspace.folder)
    workspace.write("wait.sh", "echo waiting here\nhead -c1 gate >gate.seen\n")
    model.follow(calls("Bash", command="sh wait.sh"), says("In blue, then."), says("And green."))
    with chat_terminal(workspace.folder, "--profile", "permissive") as terminal:
        terminal.wait_for(PROMPT)
        terminal.type("Paint the house" + ENTER)
        terminal.wait_for("waiting here")
        terminal.type("Make it blue" + ENTER)
        terminal.wait_for("queued: Make it blue")
        terminal.process.kill()
        terminal.process.wait(60)
    with chat_terminal(workspace.folder, "--profile", "permissive", "--continue") as terminal:
        terminal.wait_for("done/retry/skip/abort>")
        terminal.type("Skip it" + ENTER)
        terminal.wait_for("Type done, retry, skip or abort, or press Ctrl-C to answer later")
        terminal.wait_for("done/retry/skip/abort>")
        terminal.type("skip" + ENTER)
        terminal.wait_for("In blue, then.")
        terminal.type("And now?" + ENTER)
        terminal.wait_for("And green.")
        leave(terminal)
    os.close(gate)
    assert list_user_texts(model.received[1])[-1].endswith("Make it blue")
    assert json.dumps(model.received[1]).count("Make it blue") == 1
    assert len(workspace.run_ids()) == 2
