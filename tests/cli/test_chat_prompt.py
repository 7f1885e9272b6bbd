"""The chat prompt during turns: queue, interruption, custom commands, files, permissions, editor."""

from pathlib import Path

import pytest
from chat_pty import CTRL_C, CTRL_D, ENTER, TAB, chat_terminal
from model_server import ModelServer, Reply, calls, says
from run_workspace import Workspace, use_model

PROMPT = "you>"
CTRL_G, CTRL_O = "\x07", "\x0f"


def said(model: ModelServer) -> list[str]:
    """Return the conversation in the last request."""
    messages = model.received[-1]["messages"]
    return [str(each["content"]).partition("\n\n# Environment")[0] for each in messages if each["role"] != "system"]


@pytest.mark.slow
def test_a_message_typed_while_a_turn_runs_is_sent_after_it(workspace: Workspace, model: ModelServer) -> None:
    model.follow(says("First answer."), says("Second answer."))
    model.silent.set()
    with chat_terminal(workspace.folder) as terminal:
        terminal.wait_for(PROMPT)
        terminal.type("one" + ENTER)
        assert model.asked.wait(60)
        terminal.type("two" + ENTER)
        terminal.wait_for("queued: two")
        terminal.type("/facts" + ENTER)
        terminal.wait_for("No facts saved")
        model.silent.clear()
        model.released.set()
        terminal.wait_for("First answer.")
        terminal.wait_for("Second answer.")
        terminal.wait_for(PROMPT)
        terminal.type(CTRL_D)
        assert terminal.wait_for_end() == 0
    assert said(model) == ["one", "First answer.", "two"]


def test_an_interrupted_reply_is_kept_and_queued_text_returns_to_the_prompt(
    workspace: Workspace, model: ModelServer
) -> None:
    model.follow(says("Once upon a time"), says("Fine."))
    model.halting.set()
    with chat_terminal(workspace.folder) as terminal:
        terminal.wait_for(PROMPT)
        terminal.type("Tell me" + ENTER)
        terminal.wait_for("Once upon")
        terminal.type("then stop" + ENTER)
        terminal.wait_for("queued: then stop")
        terminal.type(CTRL_C)
        terminal.wait_for("Stopped by you")
        terminal.wait_for("you> then stop")
        model.halting.clear()
        model.released.set()
        terminal.type(" here" + ENTER)
        terminal.wait_for("Fine.")
        terminal.wait_for(PROMPT)
        terminal.type("/export talk.md" + ENTER)
        terminal.wait_for("Wrote talk.md")
        terminal.type(CTRL_D)
        assert terminal.wait_for_end() == 0
    kept = "Once upon a time\n[The person stopped the reply here]"
    assert said(model) == ["Tell me", kept, "then stop here"]
    assert kept in (workspace.folder / "talk.md").read_text(encoding="utf-8")


def test_a_typed_command_follows_the_rules_and_later_turns_see_its_output(
    workspace: Workspace, model: ModelServer
) -> None:
    workspace.configure(model=use_model(model), runtime={"profile": "guarded"})
    workspace.write(
        ".agent/policy.yaml",
        "tool_approvals:\n  rules:\n    - tool: Bash\n      allow: false\n      reason: People push\n"
        "      when: {command: {startsWith: git push}}\n",
    )
    model.follow(says("I saw it."))
    with chat_terminal(workspace.folder) as terminal:
        terminal.wait_for(PROMPT)
        terminal.type("!git push origin" + ENTER)
        terminal.wait_for("People push")
        terminal.type("!echo from the shell | tee said.txt" + ENTER)
        terminal.wait_for("✓ Bash echo from the shell")
        terminal.wait_for(PROMPT)
        terminal.type("What did it say?" + ENTER)
        terminal.wait_for("I saw it.")
        terminal.wait_for(PROMPT)
        terminal.type(CTRL_D)
        assert terminal.wait_for_end() == 0
    assert len(model.received) == 1
    assert "from the shell" in said(model)[-2]
    decided = [each["payload"] for run in workspace.run_ids() for each in workspace.events(run)
               if each["event_type"] == "approval_decided"]  # fmt: skip
    assert [(each["decision"], each["reason"]) for each in decided] == [("approved", "Typed by the person")]


def test_paths_and_custom_commands_are_completed_and_ctrl_g_opens_the_editor(
    workspace: Workspace, model: ModelServer, tmp_path: Path
) -> None:
    workspace.write("notes/first.md", "one\n")
    workspace.write(
        ".agent/commands/review.md", "---\ndescription: Read a file closely.\n---\nReview $1. All: $ARGUMENTS\n"
    )
    editor = tmp_path / "editor"
    editor.write_text("#!/bin/sh\nprintf ' and more' >> \"$1\"\n", encoding="utf-8")
    editor.chmod(0o755)
    model.follow(says("Done."))
    with chat_terminal(workspace.folder, EDITOR=str(editor)) as terminal:
        terminal.wait_for(PROMPT)
        terminal.type("/rev" + TAB + " @not" + TAB + "fir" + TAB)
        terminal.wait_for("first.md")
        terminal.type(" now" + ENTER)
        terminal.wait_for("Done.")
        terminal.wait_for(PROMPT)
        assert said(model) == ["Review @notes/first.md. All: @notes/first.md now"]
        terminal.type("Typed" + CTRL_G)
        terminal.wait_for("and more")
        terminal.type(ENTER)
        terminal.wait_for("Done.")
        terminal.wait_for(PROMPT)
        terminal.type(CTRL_D)
        assert terminal.wait_for_end() == 0
    assert said(model)[-1] == "Typed and more"


def test_always_covers_the_conversation_and_can_be_saved_as_a_rule_after_a_preview(
    workspace: Workspace, model: ModelServer
) -> None:
    workspace.configure(model=use_model(model), runtime={"profile": "guarded"})

    def write(name: str) -> Reply:
        return calls("Write", path=name, content="x\n")

    model.follow(
        write("a.txt"), says("One."), write("b.txt"), says("Two."), calls("Bash", command="touch made"), says("Three.")
    )
    with chat_terminal(workspace.folder) as terminal:
        terminal.wait_for(PROMPT)
        terminal.type("first" + ENTER)
        terminal.wait_for("[?]:")
        terminal.type("a")
        terminal.wait_for("in this conversation")
        terminal.type("c")
        terminal.wait_for("One.")
        terminal.type("second" + ENTER)
        terminal.wait_for("Two.")
        assert (workspace.folder / "b.txt").exists()
        terminal.type("third" + ENTER)
        terminal.wait_for("[?]:")
        terminal.type("a")
        terminal.wait_for("ave a rule")
        terminal.type("s")
        terminal.wait_for('when: {command: {equals: "touch made"}}')
        terminal.wait_for("Add it?")
        terminal.type("y")
        terminal.wait_for("Three.")
        terminal.wait_for(PROMPT)
        terminal.type(CTRL_O)
        terminal.wait_for("command: touch made")
        terminal.type(CTRL_D)
        assert terminal.wait_for_end() == 0
    policy = (workspace.folder / ".agent/policy.yaml").read_text(encoding="utf-8")
    assert policy == (
        'tool_approvals:\n  rules:\n    - tool: Bash\n      allow: true\n'
        '      when: {command: {equals: "touch made"}}\n'
    )  # fmt: skip
    assert workspace.agent("policy", "test") == 0


def test_a_continued_conversation_shows_its_end_and_undo_offers_messages_or_files(
    workspace: Workspace, model: ModelServer
) -> None:
    model.follow(calls("Write", path="a.txt", content="x\n"), says("I wrote it."), says("Again."))
    with chat_terminal(workspace.folder, "--profile", "permissive") as terminal:
        terminal.wait_for(PROMPT)
        terminal.type("Write a file" + ENTER)
        terminal.wait_for("I wrote it.")
        terminal.type(CTRL_D)
        assert terminal.wait_for_end() == 0
    with chat_terminal(workspace.folder, "--continue") as terminal:
        terminal.wait_for("▌ Write a file")
        terminal.wait_for("I wrote it.")
        terminal.wait_for(PROMPT)
        terminal.type("/undo" + ENTER)
        terminal.wait_for("remove: a.txt")
        terminal.wait_for("othing:")
        terminal.type("b" + ENTER)
        terminal.wait_for("undo-1: 1 file")
        terminal.wait_for("Undone: Write a file")
        terminal.type("Once more" + ENTER)
        terminal.wait_for("Again.")
        terminal.wait_for(PROMPT)
        terminal.type(CTRL_D)
        assert terminal.wait_for_end() == 0
    assert not (workspace.folder / "a.txt").exists()
    assert said(model) == ["Once more"]
