"""Slash commands at a real terminal: project instructions, changes, review, clipboard, status, settings, sessions."""

import base64
import subprocess
from collections.abc import Iterator

import pytest
from chat_pty import CTRL_D, ENTER, Terminal, chat_terminal
from model_server import ModelServer, calls, says
from run_workspace import Workspace, use_model

PROMPT = "you>"


@pytest.fixture
def chat(workspace: Workspace, model: ModelServer) -> Iterator[Terminal]:
    workspace.configure(model=use_model(model), runtime={"profile": "permissive"})
    with chat_terminal(workspace.folder, DISPLAY="", WAYLAND_DISPLAY="") as terminal:
        terminal.wait_for(PROMPT)
        yield terminal
        terminal.type(CTRL_D)
        assert terminal.wait_for_end() == 0


def test_init_lets_the_model_write_instructions(chat: Terminal, workspace: Workspace, model: ModelServer) -> None:
    model.follow(calls("Write", path="AGENTS.md", content="# Notes\n\nRun `make`.\n"), says("Wrote it."))

    chat.type("/init" + ENTER)
    chat.wait_for("✓ Write AGENTS.md (+3 -0)")
    chat.wait_for("Wrote it.")

    assert (workspace.folder / "AGENTS.md").read_text().startswith("# Notes")
    assert "Write the file AGENTS.md" in str(model.received[0]["messages"][-1]["content"])


def test_review_asks_for_the_named_changes(chat: Terminal, model: ModelServer) -> None:
    model.follow(says("Nothing to fix."))

    chat.type("/review branch topic" + ENTER)
    chat.wait_for("Nothing to fix.")

    asked = str(model.received[0]["messages"][-1]["content"])
    assert "Review: branch topic" in asked
    assert "Don't change any files" in asked


def test_diff_shows_changed_deleted_and_new_files_of_a_repository(chat: Terminal, workspace: Workspace) -> None:
    workspace.write("a.txt", "one\n-- old\n")
    workspace.write("gone.txt", "gone\n")
    for words in (
        ["init", "-q"],
        ["add", "a.txt", "gone.txt"],
        ["-c", "user.name=A", "-c", "user.email=a@b.example", "commit", "-qm", "x"],
    ):
        subprocess.run(["git", *words], cwd=workspace.folder, check=True)
    workspace.write("a.txt", "eins\n")
    workspace.write("new.txt", "two\n")
    (workspace.folder / "gone.txt").unlink()

    chat.type("/diff a.txt" + ENTER)
    chat.wait_for("1 -one")
    chat.wait_for("2 --- old")
    chat.wait_for("1 +eins")
    chat.type("/diff" + ENTER)
    chat.wait_for("gone.txt (deleted)")
    chat.wait_for("new.txt")
    chat.wait_for("1 +two")


def test_diff_outside_a_repository_shows_the_changes_of_the_conversation(chat: Terminal, model: ModelServer) -> None:
    chat.type("/diff" + ENTER)
    chat.wait_for("No changes")
    model.follow(calls("Write", path="a.txt", content="one\n"), says("Done."))
    chat.type("Write it" + ENTER)
    chat.wait_for("Done.")
    chat.type("/diff" + ENTER)
    chat.wait_for("a.txt\r\n    1 +one")


def test_copy_sends_the_last_answer_to_the_clipboard_of_the_terminal(chat: Terminal, model: ModelServer) -> None:
    model.follow(says("The **answer**."))
    chat.type("/copy" + ENTER)
    chat.wait_for("No answer to copy yet")
    chat.type("Say it" + ENTER)
    chat.wait_for("The answer.")
    chat.type("/copy" + ENTER)
    chat.wait_for("Copied 15 characters to the clipboard (the terminal)")

    assert b"\x1b]52;c;" + base64.b64encode(b"The **answer**.") + b"\x07" in chat.raw


def test_status_and_config_show_the_active_settings(chat: Terminal, workspace: Workspace) -> None:
    chat.type("/status" + ENTER)
    chat.wait_for("workspace")
    chat.wait_for("permissive")
    chat.type("/config runtime.profile" + ENTER)
    chat.wait_for("permissive")
    chat.type("/config runtime.max_turns 7" + ENTER)
    chat.wait_for("The change applies to the next chat")
    chat.type("/config nosuch.key" + ENTER)
    chat.wait_for("Unknown setting 'nosuch.key'")

    assert '"max_turns": 7' in (workspace.folder / "agent.yaml").read_text()


def test_sessions_are_listed_with_age_and_first_message(chat: Terminal, model: ModelServer) -> None:
    model.follow(says("One."), says("Two."))
    chat.type("Plan the release" + ENTER)
    chat.wait_for("One.")
    chat.type("And then?" + ENTER)
    chat.wait_for("Two.")
    chat.type("/sessions" + ENTER)
    shown = chat.wait_for("Plan the release")

    assert "now" in shown
    assert "2 turns" in shown
