"""`agent resume` and the questions of a run: unknown input names, and inline approvals."""

from typing import Any

import pytest
from chat_pty import ENTER, agent_terminal
from model_server import ModelServer, calls, says
from run_workspace import Workspace

type Capture = pytest.CaptureFixture[str]
FIELDS = {"type": "object", "properties": {"colour": {"type": "string"}}, "required": ["colour"]}


@pytest.mark.parametrize(("fields", "known"), [(None, "answer"), (FIELDS, "colour")])
def test_an_unrequested_input_is_rejected_with_the_known_names(
    *, fields: object, known: str, workspace: Workspace, model: ModelServer, capsys: Capture
) -> None:
    question: dict[str, Any] = {"question": "Which colour?"} | ({"fields": fields} if fields else {})
    model.follow(calls("ask_user", **question), says("Done."))
    assert workspace.agent("run", "Ask") == 4
    capsys.readouterr()

    assert workspace.agent("resume", "latest", "--input", "foo=1") == 2

    told = capsys.readouterr().err
    assert "does not ask for 'foo'" in told
    assert f"It asks for: {known}" in told
    assert workspace.agent("resume", "latest", "--input", f"{known}=blue") == 0


def test_resume_at_a_terminal_asks_for_the_pending_approval(workspace: Workspace, model: ModelServer) -> None:
    model.follow(calls("Write", path="made.txt", content="x"), says("Done."))
    assert workspace.agent("run", "Make it", "--profile", "guarded") == 3
    assert not (workspace.folder / "made.txt").exists()

    with agent_terminal(workspace.folder, "resume", "latest") as terminal:
        terminal.wait_for("[?]: ")
        terminal.type("y" + ENTER)
        terminal.wait_for("Done.")
        assert terminal.wait_for_end() == 0

    assert (workspace.folder / "made.txt").exists()
