"""Permission modes of a chat at a real terminal: Shift-Tab, `/permissions`, plan mode."""

import pytest
from chat_pty import CTRL_D, ENTER, chat_terminal
from model_server import ModelServer, calls, says
from run_workspace import Workspace, use_model

PROMPT = "you>"
SHIFT_TAB = "\x1b[Z"
RULE = "tool_approvals:\n  rules:\n    - {tool: Bash, verdict: ask, reason: People look at commands}\n"


def list_decisions(workspace: Workspace) -> list[tuple[str, str]]:
    return [
        (event["payload"]["decision"], event["payload"]["reason"])
        for run in workspace.run_ids()
        for event in workspace.events(run)
        if event["event_type"] == "approval_decided"
    ]


def make_guarded(workspace: Workspace, model: ModelServer) -> None:
    workspace.configure(model=use_model(model), runtime={"profile": "guarded"})


def test_accept_edits_writes_without_asking_and_asks_before_a_command(workspace: Workspace, model: ModelServer) -> None:
    make_guarded(workspace, model)
    model.follow(calls("Write", path="a.txt", content="x\n"), calls("Bash", command="touch made"), says("Done."))
    with chat_terminal(workspace.folder) as terminal:
        terminal.wait_for("guarded · ask")
        terminal.type(SHIFT_TAB)
        terminal.wait_for("ccept edits")  # the line is painted as far as it differs
        terminal.type("Work" + ENTER)
        terminal.wait_for("✓ Write")
        terminal.wait_for("touch made")
        terminal.wait_for("[?]:")
        assert (workspace.folder / "a.txt").exists()
        terminal.type("y")
        terminal.wait_for("Done.")
        terminal.type(CTRL_D)
        assert terminal.wait_for_end() == 0
    assert list_decisions(workspace) == [("approved", "Permission mode: accept edits"), ("approved", "")]


def test_auto_mode_does_not_approve_calls_with_an_ask_rule(workspace: Workspace, model: ModelServer) -> None:
    make_guarded(workspace, model)
    workspace.write(".agent/policy.yaml", RULE)
    model.follow(calls("Write", path="a.txt", content="x\n"), calls("Bash", command="touch made"), says("Done."))
    with chat_terminal(workspace.folder) as terminal:
        terminal.wait_for(PROMPT)
        terminal.type("/permissions auto" + ENTER)
        terminal.wait_for("Permission mode auto")
        terminal.type("Work" + ENTER)
        terminal.wait_for("People look at")
        terminal.wait_for("[?]:")
        assert (workspace.folder / "a.txt").exists()
        terminal.type("n")
        terminal.wait_for("Reason (the model sees it)")
        terminal.type(ENTER)
        terminal.wait_for("Done.")
        terminal.type(CTRL_D)
        assert terminal.wait_for_end() == 0
    assert not (workspace.folder / "made").exists()


def test_plan_mode_changes_nothing_and_ends_with_a_plan_to_approve(workspace: Workspace, model: ModelServer) -> None:
    make_guarded(workspace, model)
    write = calls("Write", path="a.txt", content="x\n")
    model.follow(write, says("1. Write a.txt"), says("1. Write only a.txt"), write, says("All done."))
    with chat_terminal(workspace.folder) as terminal:
        terminal.wait_for(PROMPT)
        terminal.type("/permissions plan" + ENTER)
        terminal.wait_for("Permission mode plan")
        terminal.type("Make the file" + ENTER)
        terminal.wait_for("Carry out this plan?")
        assert not (workspace.folder / "a.txt").exists()
        terminal.type("n")
        terminal.wait_for(PROMPT)
        terminal.type("Shorter" + ENTER)
        terminal.wait_for("Carry out this plan?")
        terminal.type("e")
        terminal.wait_for("All done.")
        terminal.type(CTRL_D)
        assert terminal.wait_for_end() == 0
    assert (workspace.folder / "a.txt").exists()
    assert [decision for decision, _ in list_decisions(workspace)] == ["denied", "approved"]
    assert "Plan mode" in str(model.received[0]["messages"][-1])
    assert "Plan mode: only reading" in str(model.received[1]["messages"][-1])


def test_a_strict_host_offers_no_mode_that_skips_approvals(workspace: Workspace, model: ModelServer) -> None:
    workspace.configure(model=use_model(model), runtime={"profile": "strict"})
    with chat_terminal(workspace.folder) as terminal:
        terminal.wait_for("strict · ask")
        terminal.type("/permissions auto" + ENTER)
        terminal.wait_for("Profile 'strict' does not have the permission mode 'auto'")
        terminal.type(SHIFT_TAB)
        terminal.wait_for("lan")
        terminal.type(CTRL_D)
        assert terminal.wait_for_end() == 0


def test_plan_mode_denies_allowed_changes_and_runs_read_only_commands(workspace: Workspace, model: ModelServer) -> None:
    make_guarded(workspace, model)
    rules = "{tool: Write, allow: true}, {tool: Bash, allow: true, when: {command: {in: [touch made, ls]}}}"
    workspace.write(".agent/policy.yaml", f"tool_approvals:\n  rules: [{rules}]\n")
    model.follow(
        calls("Write", path="a.txt", content="x\n"),
        calls("Bash", command="touch made"),
        calls("Bash", command="ls"),
        says("1. Write a.txt"),
    )
    with chat_terminal(workspace.folder) as terminal:
        terminal.wait_for(PROMPT)
        terminal.type("/permissions plan" + ENTER)
        terminal.wait_for("Permission mode plan")
        terminal.type("Make the file" + ENTER)
        terminal.wait_for("Carry out this plan?")
        terminal.type("n")
        terminal.wait_for(PROMPT)
        terminal.type(CTRL_D)
        assert terminal.wait_for_end() == 0
    assert not (workspace.folder / "a.txt").exists()
    assert not (workspace.folder / "made").exists()
    write, touch, look = [str(message) for message in model.received[-1]["messages"] if message["role"] == "tool"]
    assert "Plan mode" in write
    assert "Plan mode" in touch
    assert "agent.yaml" in look


@pytest.mark.parametrize("mode", ["accept edits", "auto"])
def test_no_mode_writes_auto_executed_files_even_through_a_link(
    workspace: Workspace, model: ModelServer, mode: str
) -> None:
    make_guarded(workspace, model)
    workspace.write("conftest.py", "")
    (workspace.folder / "notes.py").symlink_to("conftest.py")
    model.follow(
        calls("Write", path="site/x.pth", content="import os\n"),
        calls("Write", path="notes.py", content="import os\n"),
        says("Done."),
    )
    with chat_terminal(workspace.folder) as terminal:
        terminal.wait_for(PROMPT)
        terminal.type(f"/permissions {mode}" + ENTER)
        terminal.wait_for(f"Permission mode {mode}")
        terminal.type("Work" + ENTER)
        terminal.wait_for("[?]:")
        terminal.type("n")
        terminal.wait_for("Reason (the model sees it)")
        terminal.type(ENTER)
        terminal.wait_for("is a symbolic link")
        terminal.wait_for("Done.")
        terminal.type(CTRL_D)
        assert terminal.wait_for_end() == 0
    assert not (workspace.folder / "site").exists()
    assert (workspace.folder / "conftest.py").read_text() == ""


def test_always_in_a_conversation_excludes_links_to_auto_executed_files(
    workspace: Workspace, model: ModelServer
) -> None:
    make_guarded(workspace, model)
    workspace.write("conftest.py", "")
    (workspace.folder / "notes.py").symlink_to("conftest.py")
    model.follow(
        calls("Write", path="a.txt", content="x\n"),
        says("First."),
        calls("Write", path="notes.py", content="import os\n"),
        says("Second."),
    )
    with chat_terminal(workspace.folder) as terminal:
        terminal.wait_for(PROMPT)
        terminal.type("Work" + ENTER)
        terminal.wait_for("[?]:")
        terminal.type("a")
        terminal.wait_for("in this conversation")
        terminal.type("c")
        terminal.wait_for("First.")
        terminal.type("More" + ENTER)
        terminal.wait_for("is a symbolic link")
        terminal.wait_for("Second.")
        terminal.type(CTRL_D)
        assert terminal.wait_for_end() == 0
    assert (workspace.folder / "conftest.py").read_text() == ""
