"""A chat at a real terminal: streaming, Ctrl-C, Ctrl-D, multiline input, completion, inline approvals."""

import pytest
from chat_pty import CTRL_C, CTRL_D, ENTER, ESCAPE, TAB, UP, chat_terminal
from model_server import ModelServer, calls, says
from run_workspace import Workspace, use_model

from metier.cli.chat.terminal import wrap_line

pytestmark = pytest.mark.slow

PROMPT = "you>"


def said_last(model: ModelServer) -> str:
    """Return the last message without the note on date, system and folder."""
    return str(model.received[-1]["messages"][-1]["content"]).partition("\n\n# Environment")[0]


def test_ctrl_c_stops_the_turn_and_not_the_program(workspace: Workspace, model: ModelServer) -> None:
    model.follow(says("Late."), says("Here I am."))
    model.silent.set()
    with chat_terminal(workspace.folder) as terminal:
        terminal.wait_for(PROMPT)
        terminal.type("Think hard" + ENTER)
        assert model.asked.wait(60)
        terminal.type(CTRL_C)
        terminal.wait_for("Stopped by you; type /continue to resume")
        model.silent.clear()
        model.released.set()
        terminal.wait_for(PROMPT)
        terminal.type(CTRL_C)
        terminal.wait_for("To exit, press Ctrl-D or type /quit")
        terminal.wait_for(PROMPT)
        terminal.type("Are you there?" + ENTER)
        terminal.wait_for("Here I am.")
        terminal.wait_for(PROMPT)
        terminal.type(CTRL_D)
        assert terminal.wait_for_end() == 0

    assert "[Stopped before an answer]" in str(model.received[-1]["messages"])


def test_partial_text_is_shown_and_ctrl_c_stops_it(workspace: Workspace, model: ModelServer) -> None:
    model.follow(says("The first half\n" + "and so on, and so on\n" * 100))
    model.halting.set()
    with chat_terminal(workspace.folder) as terminal:
        terminal.wait_for(PROMPT)
        terminal.type("Tell me" + ENTER)
        terminal.wait_for("and so on")
        terminal.type(CTRL_C)
        terminal.wait_for("The first half")
        terminal.wait_for("Stopped by you")
        model.halting.clear()
        terminal.wait_for(PROMPT)
        model.follow(says("The whole of it."))
        terminal.type("/continue" + ENTER)
        terminal.wait_for("The whole of it.")
        terminal.wait_for(PROMPT)
        terminal.type(CTRL_D)
        assert terminal.wait_for_end() == 0


def test_a_message_may_have_many_lines_and_is_in_the_history(workspace: Workspace, model: ModelServer) -> None:
    model.follow(says("Read."))
    with chat_terminal(workspace.folder) as terminal:
        terminal.wait_for(PROMPT)
        terminal.type("one" + ESCAPE + ENTER + "two\\" + ENTER + "three" + ENTER)
        terminal.wait_for("Read.")
        terminal.wait_for(PROMPT)
        terminal.type(CTRL_D)
        assert terminal.wait_for_end() == 0
    assert said_last(model) == "one\ntwo\nthree"

    history = workspace.folder / "runs/chat_history"
    assert history.stat().st_mode & 0o077 == 0
    with chat_terminal(workspace.folder, "--continue") as terminal:
        terminal.wait_for(PROMPT)
        terminal.type(UP)
        terminal.wait_for("three")
        terminal.type(ENTER)
        terminal.wait_for("Read.")
        terminal.wait_for(PROMPT)
        terminal.type(CTRL_D)
        assert terminal.wait_for_end() == 0
    assert said_last(model) == "one\ntwo\nthree"


def test_tab_completes_commands_and_skills(workspace: Workspace, model: ModelServer) -> None:
    model.follow(says("Fine."))
    with chat_terminal(workspace.folder) as terminal:
        terminal.wait_for(PROMPT)
        terminal.type("/sk" + TAB)
        terminal.wait_for("/skills")
        terminal.type(" gree" + TAB)
        terminal.wait_for("greeter")
        terminal.type(ENTER)
        terminal.wait_for("Greet somebody kindly")
        terminal.wait_for(PROMPT)
        terminal.type("/quit" + ENTER)
        assert terminal.wait_for_end() == 0


def test_an_approval_is_asked_inline_and_an_interrupted_one_is_decided_later(
    workspace: Workspace, model: ModelServer
) -> None:
    workspace.configure(model=use_model(model), runtime={"profile": "guarded"})
    model.follow(calls("Write", path="a.txt", content="one\n"), says("Wrote it."))
    with chat_terminal(workspace.folder) as terminal:
        terminal.wait_for(PROMPT)
        terminal.type("Write a file" + ENTER)
        terminal.wait_for("[?]:")
        terminal.type("y" + ENTER)
        terminal.wait_for("Wrote it.")
        terminal.wait_for(PROMPT)
        assert (workspace.folder / "a.txt").read_text() == "one\n"

        model.follow(calls("Write", path="b.txt", content="two\n"), says("Wrote that too."))
        terminal.type("Write another" + ENTER)
        terminal.wait_for("[?]:")
        terminal.type(CTRL_C)
        terminal.wait_for("type /approve to decide")
        terminal.wait_for(PROMPT)
        terminal.type("/approve" + ENTER)
        terminal.wait_for("[?]:")
        terminal.type("y" + ENTER)
        terminal.wait_for("Wrote that too.")
        terminal.wait_for(PROMPT)
        terminal.type(CTRL_D)
        assert terminal.wait_for_end() == 0
    assert (workspace.folder / "b.txt").read_text() == "two\n"


def test_a_question_of_the_model_is_answered_with_the_next_line(workspace: Workspace, model: ModelServer) -> None:
    model.follow(calls("ask_user", question="Which colour?"), says("Blue it is."))
    with chat_terminal(workspace.folder) as terminal:
        terminal.wait_for(PROMPT)
        terminal.type("Paint it" + ENTER)
        terminal.wait_for("Which colour?")
        terminal.wait_for("answer>")
        terminal.type("blue" + ENTER)
        terminal.wait_for("Blue it is.")
        terminal.wait_for(PROMPT)
        terminal.type(CTRL_D)
        assert terminal.wait_for_end() == 0
    assert "blue" in str(model.received[-1]["messages"][-1])


@pytest.mark.parametrize(
    ("line", "shown"),
    [
        ("short", ["short"]),
        ("/compact   Summarize it to free context", ["/compact   Summarize it to free", "           context"]),
        ("error: openai answered 401. Check the API key", ["error: openai answered 401.", "       Check the API key"]),
        ("Messages sent during a turn steer it; others run", ["Messages sent during a turn", "steer it; others run"]),
        ("a " + "x" * 70, ["a " + "x" * 29, "x" * 31, "x" * 10]),
        ("\x1b[1m" + "x" * 40 + "\x1b[0m", ["\x1b[1m" + "x" * 40 + "\x1b[0m"]),
    ],
)  # fmt: skip
def test_long_lines_of_a_command_are_wrapped_between_words(line: str, shown: list[str]) -> None:
    assert wrap_line(line, 31).split("\n") == shown
