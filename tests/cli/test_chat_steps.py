"""Steps of a chat turn at a real terminal: file changes, output, lists."""

import re
from contextlib import AbstractContextManager

from chat_pty import CTRL_D, ENTER, ESCAPE, Terminal, chat_terminal
from model_server import ModelServer, Reply, calls, says
from run_workspace import Workspace, use_model

PROMPT = "you>"
CTRL_O = "\x0f"


def open_chat(workspace: Workspace, *args: str) -> AbstractContextManager[Terminal]:
    return chat_terminal(workspace.folder, *args)


def list_changes(shown: str) -> list[str]:
    """Return the diff lines on a screen with their numbers."""
    return [line.strip() for line in shown.splitlines() if re.match(r"\s+\d+ [-+ ]", line)]


def test_the_diff_below_a_step_is_the_approved_one(workspace: Workspace, model: ModelServer) -> None:
    workspace.configure(model=use_model(model), runtime={"profile": "guarded"})
    workspace.write("long.txt", "".join(f"line {number}\n" for number in range(1, 61)))
    workspace.write("old.txt", "one\ntwo\n")
    model.follow(
        calls("Edit", path="long.txt", old="line 50\n", new="line fifty\n"),
        calls("Write", path="old.txt", content="one\nzwei\n"),
        says("Done."),
    )
    with open_chat(workspace) as terminal:
        terminal.wait_for(PROMPT)
        terminal.type("Change them" + ENTER)
        approved = list_changes(terminal.wait_for("[?]:"))
        terminal.type("y")
        terminal.wait_for("✓ Edit")
        second = terminal.wait_for("[?]:")
        made, _, asked = second.partition("Replace the file")
        assert "50 -line 50" in approved
        assert list_changes(made) == approved
        terminal.type("y")
        terminal.wait_for("✓ Write")
        assert list_changes(terminal.wait_for("Done.")) == list_changes(asked)
        terminal.type(CTRL_D)
        assert terminal.wait_for_end() == 0


def test_a_denied_edit_and_an_unchanged_write_show_no_diff(workspace: Workspace, model: ModelServer) -> None:
    workspace.configure(model=use_model(model), runtime={"profile": "guarded"})
    workspace.write("a.txt", "one\n")
    model.follow(
        calls("Edit", path="a.txt", old="one", new="eins"), calls("Write", path="a.txt", content="one\n"), says("Done.")
    )
    with open_chat(workspace) as terminal:
        terminal.wait_for(PROMPT)
        terminal.type("Change it" + ENTER)
        terminal.wait_for("[?]:")
        terminal.type("n")
        terminal.wait_for("Reason (the model sees it)")
        terminal.type(ENTER)
        denied, _, _ = terminal.wait_for("[?]:").partition("Replace the file")
        assert list_changes(denied) == []
        terminal.type("y")
        terminal.wait_for("✓ Write")
        assert list_changes(terminal.wait_for("Done.")) == []
        terminal.type(CTRL_D)
        assert terminal.wait_for_end() == 0


def test_truncated_diff_tells_how_to_see_the_rest(workspace: Workspace, model: ModelServer) -> None:
    content = "".join(f"row {number} of it\n" for number in range(1, 301))
    model.follow(calls("Write", path="rows.txt", content=content), says("Done."))
    with open_chat(workspace, "--profile", "permissive") as terminal:
        terminal.wait_for(PROMPT)
        terminal.type("Write rows" + ENTER)
        assert "row 299 of it" not in terminal.wait_for("more lines of diff; Ctrl-O shows all")
        terminal.wait_for("Done.")
        terminal.type(CTRL_O)
        terminal.wait_for("row 299 of it")
        terminal.type(CTRL_D)
        assert terminal.wait_for_end() == 0


def test_ctrl_o_shows_the_whole_output_of_a_step(workspace: Workspace, model: ModelServer) -> None:
    model.follow(calls("Bash", command="seq -f 'row %g of it' 300"), says("Done."))
    with open_chat(workspace, "--profile", "permissive") as terminal:
        terminal.wait_for(PROMPT)
        terminal.type("Count" + ENTER)
        terminal.wait_for("more lines; Ctrl-O shows all")
        terminal.wait_for("Done.")
        terminal.type(CTRL_O)
        terminal.wait_for("row 150 of it")
        terminal.wait_for("row 300 of it")
        terminal.type(CTRL_D)
        assert terminal.wait_for_end() == 0


def test_the_output_of_a_typed_command_is_shown_verbatim(workspace: Workspace, model: ModelServer) -> None:
    with open_chat(workspace) as terminal:
        terminal.wait_for(PROMPT)
        terminal.type("!printf '# he%s\\n* st%s\\n' ad ar" + ENTER)
        shown = terminal.wait_for("✓ Bash") + terminal.wait_for("* star")
        assert "# head" in shown
        terminal.type("/model" + ENTER)  # waits for the end of the turn
        terminal.wait_for("* m")
        terminal.type(CTRL_D)
        assert terminal.wait_for_end() == 0
    with open_chat(workspace, "--continue") as terminal:
        terminal.wait_for("# head")
        terminal.wait_for("* star")
        terminal.type(CTRL_D)
        assert terminal.wait_for_end() == 0


def test_a_long_ordered_list_keeps_its_numbers(workspace: Workspace, model: ModelServer) -> None:
    listed = "\n".join(f"{number}. entry {number} {'word ' * 20}" for number in range(1, 121))
    model.follow(says(listed), says("Over."))
    with open_chat(workspace) as terminal:
        terminal.wait_for(PROMPT)
        terminal.type("List them" + ENTER)
        shown = terminal.wait_for("entry 120")
        terminal.type("Thanks" + ENTER)
        shown += terminal.wait_for("Over.")
        terminal.type(CTRL_D)
        assert terminal.wait_for_end() == 0
    assert {int(number) for number in re.findall(r"\b(\d+)\. entry \1 ", shown)} == set(range(1, 121))


def make_plan(*states: str) -> Reply:
    names = ("Read the notes", "Change them", "Check them")
    steps = [{"step": name, "status": state} for name, state in zip(names, states, strict=True)]
    return calls("plan", steps=steps)


def test_the_plan_is_one_checklist_updated_in_place(workspace: Workspace, model: ModelServer) -> None:
    workspace.configure(model=use_model(model))
    model.follow(
        make_plan("in_progress", "pending", "pending"),
        calls("Bash", command="test -e go || sleep 60"),
        make_plan("done", "done", "done"),
        says("Finished."),
    )
    with open_chat(workspace, "--profile", "permissive") as terminal:
        terminal.wait_for(PROMPT)
        terminal.type("Plan it" + ENTER)
        moving = terminal.wait_for("☐ Check them")
        assert "▸ Read the notes" in moving
        assert "☐ Change them" in moving
        terminal.type(ESCAPE)
        terminal.wait_for("Stopped by you")
        workspace.write("go", "")
        terminal.type("/continue" + ENTER)
        shown = terminal.wait_for("Finished.")
        assert "plan:" not in shown
        assert [line.strip() for line in shown.splitlines() if line.startswith("✓ ")][-3:] == [
            "✓ Read the notes",
            "✓ Change them",
            "✓ Check them",
        ]
        terminal.type(CTRL_D)
        assert terminal.wait_for_end() == 0
