"""Hosts in lookalike letters: an approver sees the resolved name."""

import pytest
from model_server import ModelServer, calls
from run_workspace import QUICK, Workspace, use_model


def test_approval_of_a_url_shows_the_host_that_is_resolved(
    workspace: Workspace, model: ModelServer, capsys: pytest.CaptureFixture[str]
) -> None:
    workspace.configure(model=use_model(model), runtime={**QUICK, "profile": "guarded"})
    model.follow(calls("WebFetch", url="https://gi\u0442hub.com/x"))
    assert workspace.agent("run", "look it up", "-q") == 3
    capsys.readouterr()

    assert workspace.agent("approvals", "list") == 0
    approval = next(word for word in capsys.readouterr().out.split() if word.startswith("ap-"))
    assert workspace.agent("approvals", "show", approval) == 0

    assert "https://xn--gihub-8ye.com/x" in capsys.readouterr().out
