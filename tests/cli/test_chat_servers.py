"""External servers in a chat: started once when needed, and stopped with the chat."""

import os
import signal

import pytest
from chat_pty import CTRL_C, CTRL_D, ENTER, chat_terminal
from mcp_workspace import accept, count_lines, define, is_gone, use_hostile
from model_server import ModelServer, calls, says
from run_workspace import Workspace

pytestmark = pytest.mark.slow

PROMPT = "you>"
ASKS_NOTHING = ("--profile", "permissive")


def list_servers(workspace: Workspace) -> list[int]:
    """Return the process of each server start."""
    return [int(line) for line in (workspace.folder / "starts.txt").read_text(encoding="utf-8").splitlines()]


def test_a_server_starts_in_the_first_turn_that_needs_it_and_is_reused(
    workspace: Workspace, model: ModelServer
) -> None:
    accept(workspace, bad=use_hostile())
    model.follow(says("Hello."), calls("bad___count"), says("One."), calls("bad___count"), says("Two."))
    with chat_terminal(workspace.folder, *ASKS_NOTHING) as terminal:
        terminal.wait_for(PROMPT)
        terminal.type("Hello" + ENTER)
        terminal.wait_for("Hello.")
        terminal.wait_for(PROMPT)
        assert count_lines(workspace, "starts.txt") == 0
        for answer in ("One.", "Two."):
            terminal.type("Count" + ENTER)
            terminal.wait_for(answer)
            terminal.wait_for(PROMPT)
        (server,) = list_servers(workspace)
        os.kill(server, 0)
        terminal.type(CTRL_D)
        assert terminal.wait_for_end() == 0

    assert count_lines(workspace, "calls.txt") == 2
    assert is_gone(server)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGKILL])
def test_a_chat_that_is_killed_at_its_prompt_leaves_no_server(
    workspace: Workspace, model: ModelServer, number: signal.Signals
) -> None:
    accept(workspace, bad=use_hostile())
    model.follow(calls("bad___count"), says("One."))
    with chat_terminal(workspace.folder, *ASKS_NOTHING) as terminal:
        terminal.wait_for(PROMPT)
        terminal.type("Count" + ENTER)
        terminal.wait_for("One.")
        terminal.wait_for(PROMPT)
        (server,) = list_servers(workspace)
        terminal.process.send_signal(number)
        assert terminal.wait_for_end() != 0

    assert is_gone(server)


def test_ctrl_c_in_a_call_stops_the_server_and_the_next_call_restarts_it(
    workspace: Workspace, model: ModelServer
) -> None:
    accept(workspace, bad=use_hostile())
    begun = workspace.folder / "begun"
    os.mkfifo(begun)
    model.follow(calls("bad___hang", text=str(begun)), calls("bad___count"), says("One."))
    with chat_terminal(workspace.folder, *ASKS_NOTHING) as terminal:
        terminal.wait_for(PROMPT)
        terminal.type("Hang" + ENTER)
        assert begun.read_text(encoding="utf-8") == "begun"
        terminal.type(CTRL_C)
        terminal.wait_for("Stopped by you")
        terminal.wait_for(PROMPT)
        first = int((workspace.folder / "child.txt").read_text(encoding="utf-8"))
        assert is_gone(first)
        terminal.type("Count" + ENTER)
        terminal.wait_for("One.")
        terminal.wait_for(PROMPT)
        terminal.type(CTRL_D)
        assert terminal.wait_for_end() == 0

    assert len(list_servers(workspace)) == 2
    assert all(is_gone(server) for server in list_servers(workspace))


def test_ctrl_c_during_a_server_start_stops_the_server_and_not_the_chat(
    workspace: Workspace, model: ModelServer
) -> None:
    accept(workspace, bad=use_hostile())
    mute = workspace.folder / "mute"
    os.mkfifo(mute)
    model.follow(calls("bad___count"))
    with chat_terminal(workspace.folder, *ASKS_NOTHING) as terminal:
        terminal.wait_for(PROMPT)
        terminal.type("Count" + ENTER)
        assert mute.read_text(encoding="utf-8") == "begun"
        (server,) = list_servers(workspace)
        terminal.type(CTRL_C)
        terminal.wait_for("Stopped by you")
        terminal.wait_for(PROMPT)
        assert is_gone(server)
        terminal.type(CTRL_D)
        assert terminal.wait_for_end() == 0


def test_a_definition_that_changes_during_a_chat_stops_the_old_server(workspace: Workspace, model: ModelServer) -> None:
    accept(workspace, bad=use_hostile())
    model.follow(calls("bad___count"), says("One."), says("Gone."))
    with chat_terminal(workspace.folder, *ASKS_NOTHING) as terminal:
        terminal.wait_for(PROMPT)
        terminal.type("Count" + ENTER)
        terminal.wait_for("One.")
        terminal.wait_for(PROMPT)
        define(workspace, bad=use_hostile("--other"))
        terminal.type("Count again" + ENTER)
        terminal.wait_for("server bad is left out")
        terminal.wait_for("Gone.")
        terminal.wait_for(PROMPT)
        (server,) = list_servers(workspace)
        assert is_gone(server)
        terminal.type(CTRL_D)
        assert terminal.wait_for_end() == 0
