"""The keys of the chat's prompt at a real terminal: search, interrupt, one-key answers, suspend, paste."""

import os
import re
import shlex
import signal
from collections.abc import Generator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import pytest
from chat_pty import CTRL_C, CTRL_D, ENTER, ESCAPE, TAB, Terminal, agent_terminal, chat_terminal, open_terminal
from model_server import ModelServer, Reply, calls, says
from run_workspace import Workspace, use_model

from agent_command import AGENT

PROMPT = "you>"
CTRL_G, CTRL_R, CTRL_Z = "\x07", "\x12", "\x1a"
BASH = Path("/bin/bash")
NEEDS_BASH = pytest.mark.skipif(not BASH.exists(), reason="needs a shell with job control")


def open_chat(workspace: Workspace, *args: str) -> AbstractContextManager[Terminal]:
    return chat_terminal(workspace.folder, *args)


def said(model: ModelServer) -> list[str]:
    """Return the last message of each request."""
    return [str(each["messages"][-1]["content"]).partition("\n\n# Environment")[0] for each in model.received]


def remember_messages(workspace: Workspace, *messages: str) -> None:
    """Write the history file as earlier chats leave it."""
    workspace.write("runs/chat_history", "".join(f"\n# 2026-01-01 00:00:00\n+{each}\n" for each in messages))


@pytest.mark.parametrize("key", [CTRL_C, CTRL_G, CTRL_D])
def test_a_cancel_key_leaves_the_reverse_search(key: str, workspace: Workspace, model: ModelServer) -> None:
    remember_messages(workspace, "find the needle")
    model.follow(says("Answered."))
    with open_chat(workspace) as terminal:
        terminal.wait_for(PROMPT)
        terminal.type(CTRL_R + "need")
        terminal.wait_for("find the needle")
        terminal.type(key)
        terminal.type("typed afterwards" + ENTER)
        terminal.wait_for("Answered.")
        terminal.type(CTRL_D)
        assert terminal.wait_for_end() == 0
    assert said(model) == ["typed afterwards"]


@pytest.mark.parametrize("key", [ENTER, ESCAPE])
def test_an_accept_key_inserts_the_found_message_into_the_prompt(
    key: str, workspace: Workspace, model: ModelServer
) -> None:
    remember_messages(workspace, "find the needle", "something else")
    model.follow(says("Answered."))
    with open_chat(workspace) as terminal:
        terminal.wait_for(PROMPT)
        terminal.type(CTRL_R + "need")
        terminal.wait_for("find the needle")
        terminal.type(key)
        terminal.wait_for("find the needle")
        terminal.type(ENTER)
        terminal.wait_for("Answered.")
        terminal.type(CTRL_D)
        assert terminal.wait_for_end() == 0
    assert said(model) == ["find the needle"]


def test_escape_stops_the_turn_and_the_spinner_names_the_key(workspace: Workspace, model: ModelServer) -> None:
    model.follow(says("Late."), says("Here."))
    model.silent.set()
    with open_chat(workspace) as terminal:
        terminal.wait_for(PROMPT)
        terminal.type("Think" + ENTER)
        assert model.asked.wait(60)
        terminal.wait_for("Esc interrupts")
        terminal.type(ESCAPE)
        terminal.wait_for("Stopped by you")
        model.silent.clear()
        model.released.set()
        terminal.type("one" + ESCAPE + ENTER + "two" + ENTER)
        terminal.wait_for("Here.")
        terminal.type(CTRL_D)
        assert terminal.wait_for_end() == 0
    assert said(model)[-1] == "one\ntwo"


def make_guarded(workspace: Workspace, model: ModelServer) -> None:
    workspace.configure(model=use_model(model), runtime={"profile": "guarded"})


def test_one_key_answers_an_approval_and_only_the_exact_key_approves(workspace: Workspace, model: ModelServer) -> None:
    make_guarded(workspace, model)
    write = [calls("Write", path=f"{name}.txt", content="x\n") for name in "abc"]
    model.follow(write[0], says("One."), write[1], says("Two."), write[2], says("Three."))
    with open_chat(workspace) as terminal:
        terminal.wait_for(PROMPT)
        terminal.type("first" + ENTER)
        terminal.wait_for("[?]:")
        terminal.type("1" + ENTER + " y")
        terminal.wait_for("One.")
        terminal.type("second" + ENTER)
        terminal.wait_for("[?]:")
        terminal.type("a")
        terminal.wait_for("[b]ack:")
        terminal.type("1" + ENTER + "b")
        terminal.wait_for("[?]:")
        assert not (workspace.folder / "b.txt").exists()
        terminal.type("a")
        terminal.wait_for("[b]ack:")
        terminal.type("c")
        terminal.wait_for("Two.")
        terminal.type("third" + ENTER)
        terminal.wait_for("Three.")
        terminal.type(CTRL_D)
        assert terminal.wait_for_end() == 0
    assert (workspace.folder / "c.txt").exists()


def test_a_half_typed_message_does_not_answer_an_approval(workspace: Workspace, model: ModelServer) -> None:
    make_guarded(workspace, model)
    model.follow(calls("Write", path="a.txt", content="x\n"), says("Done."))
    model.silent.set()
    with open_chat(workspace) as terminal:
        terminal.wait_for(PROMPT)
        terminal.type("Write" + ENTER)
        assert model.asked.wait(60)
        terminal.type("tr")
        terminal.wait_for("tr")
        model.silent.clear()
        model.released.set()
        terminal.wait_for("[?]:")
        terminal.type("y it" + ENTER)
        terminal.wait_for("Answer with one of")
        assert not (workspace.folder / "a.txt").exists()
        terminal.wait_for("[?]:")
        terminal.type("y" + ENTER)
        terminal.wait_for("Done.")
        terminal.wait_for(PROMPT)
        terminal.type("y it" + ENTER)
        terminal.wait_for("Done.")
        terminal.type(CTRL_D)
        assert terminal.wait_for_end() == 0
    assert said(model)[-1] == "try it"


def test_the_prompt_names_its_call_and_the_card_of_that_call_is_shown_last(
    workspace: Workspace, model: ModelServer
) -> None:
    make_guarded(workspace, model)
    many = Reply(calls=tuple(("Write", {"path": f"{name}.txt", "content": "x\n"}) for name in "abc"))
    model.follow(many, says("Done."))
    with open_chat(workspace) as terminal:
        terminal.wait_for(PROMPT)
        terminal.type("Write them" + ENTER)
        shown = terminal.wait_for("Write a.txt (1 of 3)")
        assert re.findall(r"\? (\d) of 3 ", shown) == ["2", "3", "1"]
        terminal.wait_for("[?]:")
        terminal.type("n")
        terminal.wait_for("Reason (the model sees it)")
        terminal.type("no need" + ENTER)
        shown = terminal.wait_for("Write b.txt (2 of 3)")
        assert re.findall(r"\? (\d) of 3 ", shown) == ["2"]
        terminal.type("y")
        terminal.wait_for("Write c.txt (3 of 3)")
        terminal.wait_for("[?]:")
        terminal.type("y")
        terminal.wait_for("Done.")
        terminal.type(CTRL_D)
        assert terminal.wait_for_end() == 0
    assert sorted(file.name for file in workspace.folder.glob("*.txt")) == ["b.txt", "c.txt"]


def test_one_key_answers_an_approval_of_a_run(workspace: Workspace, model: ModelServer) -> None:
    model.follow(calls("Write", path="a.txt", content="x\n"), says("Done."))
    arguments = ("run", "Write", "--profile", "guarded")
    with agent_terminal(workspace.folder, *arguments) as terminal:
        terminal.wait_for("[?]: ")
        terminal.type("1" + "\x1b[A" + "y")
        terminal.wait_for("Done.")
        assert terminal.wait_for_end() == 0
    assert (workspace.folder / "a.txt").exists()


def test_escape_leaves_an_approval_of_a_run_open(workspace: Workspace, model: ModelServer) -> None:
    model.follow(calls("Write", path="a.txt", content="x\n"), says("Done."))
    arguments = ("run", "Write", "--profile", "guarded")
    with agent_terminal(workspace.folder, *arguments) as terminal:
        terminal.wait_for("[?]: ")
        terminal.type(ESCAPE)
        terminal.wait_for("next:    agent approve")
        assert terminal.wait_for_end() == 3


def test_a_long_pasted_text_is_folded_in_the_prompt_and_sent_in_full(workspace: Workspace, model: ModelServer) -> None:
    model.follow(says("Read."))
    pasted = "\n".join(f"line {number}" for number in range(300))
    with open_chat(workspace) as terminal:
        terminal.wait_for(PROMPT)
        terminal.type(f"See \x1b[200~{pasted}\x1b[201~")
        assert "line 17" not in terminal.wait_for("[300 lines pasted]")
        terminal.type(" please" + ENTER)
        terminal.wait_for("280 more lines")
        terminal.wait_for("Read.")
        terminal.type(CTRL_D)
        assert terminal.wait_for_end() == 0
    assert said(model) == [f"See {pasted} please"]
    assert "+line 299 please" in (workspace.folder / "runs/chat_history").read_text(encoding="utf-8")


def test_a_path_completed_with_tab_is_sent_with_one_enter(workspace: Workspace, model: ModelServer) -> None:
    workspace.write("notes/first.md", "one\n")
    workspace.write("notes/second.md", "two\n")
    model.follow(says("Read."))
    with open_chat(workspace) as terminal:
        terminal.wait_for(PROMPT)
        terminal.type("Read @notes/" + TAB)
        terminal.wait_for("second.md")
        terminal.type(TAB)
        terminal.wait_for("first.md")
        terminal.type(ENTER)
        terminal.wait_for("Read.")
        terminal.type(CTRL_D)
        assert terminal.wait_for_end() == 0
    assert said(model)[-1].startswith("Read @notes/first.md")


def test_ctrl_z_suspends_the_program_and_it_continues(workspace: Workspace, model: ModelServer) -> None:
    model.follow(says("Read."))
    with open_chat(workspace) as terminal:
        terminal.wait_for(PROMPT)
        terminal.type("half a mess" + CTRL_Z)
        pid, status = os.waitpid(terminal.process.pid, os.WUNTRACED)
        assert os.WIFSTOPPED(status)
        terminal.forget()
        os.kill(pid, signal.SIGCONT)
        terminal.wait_for("half a mess")  # the prompt is drawn again before the next key
        terminal.type("age" + ENTER)
        terminal.wait_for("Read.")
        terminal.type(CTRL_D)
        assert terminal.wait_for_end() == 0
    assert said(model) == ["half a message"]


@contextmanager
def chat_in_a_shell(workspace: Workspace) -> Generator[Terminal]:
    """Start a chat in an interactive shell with job control."""
    options = ("--norc", "--noprofile", "-i")
    with open_terminal(BASH, *options, folder=workspace.folder, environment={"PS1": "shell> "}) as terminal:
        terminal.wait_for("shell>")
        terminal.type(f"{shlex.quote(str(AGENT))} chat --profile permissive" + ENTER)
        terminal.wait_for(PROMPT)
        yield terminal
        terminal.type(CTRL_D)
        terminal.wait_for("shell>")
        terminal.type("exit" + ENTER)
        assert terminal.wait_for_end() == 0


def suspend(terminal: Terminal) -> None:
    """Press Ctrl-Z, and check that the shell has a usable terminal."""
    terminal.type(CTRL_Z)
    terminal.wait_for("Stopped")
    terminal.wait_for("shell>")
    terminal.type("stty -a | grep -q ' icanon' && echo line mode $((6 * 7))" + ENTER)
    terminal.wait_for("line mode 42")


@NEEDS_BASH
def test_a_reply_that_is_streaming_is_completed_after_ctrl_z_and_fg(workspace: Workspace, model: ModelServer) -> None:
    model.follow(says("Once upon a time there was a folder. " * 20 + "The end."), says("Another story."))
    model.halting.set()
    with chat_in_a_shell(workspace) as terminal:
        terminal.type("Tell me a story" + ENTER)
        terminal.wait_for("Once upon a time")
        terminal.type("half a mess")
        terminal.wait_for("half a mess")
        suspend(terminal)
        model.halting.clear()
        model.released.set()

        terminal.type("fg" + ENTER)

        terminal.wait_for("The end.")
        terminal.wait_for("you> half a mess")
        terminal.type("age" + ENTER)
        terminal.wait_for("Another story.")
        terminal.wait_for(PROMPT)
    assert said(model)[-1] == "half a message"
    assert len(model.received) == 2, "the suspended model call is not repeated"


@NEEDS_BASH
def test_a_command_that_runs_is_completed_after_ctrl_z_and_fg(workspace: Workspace, model: ModelServer) -> None:
    command = "expr 11 + 11; while [ ! -e go ]; do sleep 0.05; done; expr 33 + 33"
    model.follow(calls("Bash", command=command), says("It is done."))
    with chat_in_a_shell(workspace) as terminal:
        terminal.type("Run it" + ENTER)
        terminal.wait_for("22")
        suspend(terminal)
        workspace.write("go", "")

        terminal.type("fg" + ENTER)

        terminal.wait_for("It is done.")
        terminal.wait_for(PROMPT)
    assert "22\n66" in said(model)[-1]
