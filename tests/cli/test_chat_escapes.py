"""Terminal control sequences from the model, a tool and a file name never reach a chat's terminal."""

import json

import pytest
from chat_pty import CTRL_D, ENTER, agent_terminal, chat_terminal
from model_server import ModelServer, Reply, calls, says
from run_workspace import Workspace, use_model

PROMPT = "you>"
ATTACKS = (
    "\x1b]0;PWNED\x07", "\x1b]52;c;UFdORUQ=\x07", "\x1bP+q544e\x1b\\", "\x1b[2J\x1b[HPWNED", "\x9b31m",
    "\x9d0;PWNED\x9c", "\x1b]8;;http://evil.example\x07", "\x1b[?1049h", "\x1b[5i", "\x1bc", "safe\rPWNED",
    "\x08\x08\x08", "\u202eDENWP\u202c",
)  # fmt: skip
FORBIDDEN = (
    "\x1b]0;PWNED", "\x1b]52;", "\x1bP+q", "\x1b[2J\x1b[HPWNED", "\x1b]8;;http://evil", "\x9b", "\x9d", "\x1b[5i",
    "\x1bc", "safe\rPWNED", "\x08\x08\x08", "\u202e", "\x1b[?1049h", "\x00",
)  # fmt: skip


def find_forbidden(raw: bytes) -> list[str]:
    shown = raw.decode("utf-8", "replace")
    return [each for each in FORBIDDEN if each in shown]


def test_no_control_sequence_of_the_model_or_a_tool_reaches_the_terminal(
    workspace: Workspace, model: ModelServer
) -> None:
    workspace.configure(model=use_model(model), runtime={"profile": "permissive"})
    text = " ".join(ATTACKS)
    (workspace.folder / "evil.txt").write_text(text, encoding="utf-8")
    model.follow(
        Reply(text=f"Look {text}", calls=(("Read", {"path": "evil.txt"}),)),
        calls("Bash", command="cat evil.txt; cat evil.txt >&2; exit 3"),
        says(f"Said {text} ended.\n\n```\n{text}\n```\n\n[link{ATTACKS[0]}](http://x{ATTACKS[1]})\n\nThe last line."),
    )
    with chat_terminal(workspace.folder) as terminal:
        terminal.wait_for(PROMPT)
        terminal.type("Go" + ENTER)
        terminal.wait_for("The last line.")
        terminal.wait_for(PROMPT)
        raw = terminal.raw
        terminal.type(CTRL_D)
        assert terminal.wait_for_end() == 0

    assert len(find_forbidden(text.encode())) >= len(ATTACKS) - 1
    assert find_forbidden(raw) == []


def test_no_control_sequence_of_a_call_reaches_the_approval_prompt(workspace: Workspace, model: ModelServer) -> None:
    workspace.configure(model=use_model(model), runtime={"profile": "guarded"})
    text = " ".join(ATTACKS)
    model.follow(calls("Write", path="a.txt", content=text), says("The last line."))
    with chat_terminal(workspace.folder) as terminal:
        terminal.wait_for(PROMPT)
        terminal.type("Go" + ENTER)
        terminal.wait_for("[?]:")
        raw = terminal.raw
        terminal.hang_up()

    assert find_forbidden(raw) == []


def test_an_approval_shows_text_hidden_by_terminal_sequences(
    workspace: Workspace, model: ModelServer, capsys: pytest.CaptureFixture[str]
) -> None:
    workspace.configure(model=use_model(model), runtime={"profile": "guarded"})
    model.follow(calls("Bash", command="echo \x1b]0; touch made #\x07 done"), says("Done."))
    with agent_terminal(workspace.folder, "run", "Work") as terminal:
        card = terminal.wait_for("[?]:")
        terminal.type("q")
        terminal.wait_for_end()
    capsys.readouterr()
    assert workspace.agent("approvals", "list", "--json") == 0
    (listed,) = json.loads(capsys.readouterr().out)
    assert workspace.agent("approvals", "show", listed["approval_id"]) == 0

    assert "$ echo \\x1b]0; touch made #\\x07 done" in card
    assert "command: echo \\x1b]0; touch made #\\x07 done" in capsys.readouterr().out
    (asked,) = [event for event in workspace.events() if event["event_type"] == "approval_requested"]
    assert asked["payload"]["arguments"]["command"] == "echo \\x1b]0; touch made #\\x07 done"
