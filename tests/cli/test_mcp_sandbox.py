"""Local MCP servers run in a sandbox if one is required; the list shows it in either case."""

import json
import os
import sys
from pathlib import Path

import pytest
from mcp_workspace import accept
from model_server import ModelServer, calls, says
from run_workspace import Workspace

from metier.tools.process.sandbox.bubblewrap import get_bubblewrap
from metier.tools.process.sandbox.levels import choose_level

pytestmark = pytest.mark.slow

PRYING = Path(__file__).parent / "prying_mcp_server.py"
NOTHING = {"env": False, "home": False, "settings": False, "out": True}
EVERYTHING = dict.fromkeys(NOTHING, True)


@pytest.fixture
def level(workspace: Workspace) -> str:
    """The sandbox level; skips if no sandbox is available."""
    trial = choose_level(get_bubblewrap(os.environ, workspace.folder))
    if not trial.works:
        pytest.skip(f"no sandbox can be shown here: {trial.summary}")
    return trial.level


@pytest.fixture
def prying(workspace: Workspace, model: ModelServer, tmp_path: Path) -> Workspace:
    (workspace.folder / ".env").write_text("secret", encoding="utf-8")
    (workspace.folder / "out").mkdir()
    (tmp_path / "home/.ssh").mkdir()
    (tmp_path / "home/.ssh/id_rsa").write_text("secret", encoding="utf-8")
    accept(workspace, prying={"command": sys.executable, "args": [str(PRYING)]})
    model.follow(calls("prying___pry"), says("Done."))
    return workspace


def has_planted(workspace: Workspace) -> bool:
    """Return whether a file that it wrote next to the workspace is on this machine."""
    return (workspace.folder.parent / "planted").exists()


def find_seen(model: ModelServer) -> dict[str, bool]:
    """The server's report about its reach; it can't tell about writes outside."""
    text = str(model.received[-1]["messages"][-1]["content"])
    assert "{" in text, text
    seen = dict(json.loads(text[text.index("{") : text.rindex("}") + 1]))
    return {name: seen[name] for name in NOTHING}


def test_a_server_runs_in_the_sandbox_if_one_is_required(
    prying: Workspace,
    model: ModelServer,
    level: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("AGENT_SANDBOX_USE", "required")

    assert prying.agent("run", "Look", "-q") == 0

    assert find_seen(model) == NOTHING
    assert not has_planted(prying)
    capsys.readouterr()
    assert prying.agent("mcp", "list", "--json") == 0
    assert json.loads(capsys.readouterr().out)[0]["sandbox"] == level


@pytest.mark.parametrize("outside", ["prying", "all"])
def test_a_server_exempted_in_the_settings_runs_unsandboxed_and_is_marked_in_the_list(
    prying: Workspace,
    model: ModelServer,
    level: str,
    outside: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert level
    monkeypatch.setenv("AGENT_SANDBOX_USE", "required")
    monkeypatch.setenv("AGENT_MCP_OUTSIDE_SANDBOX", outside)

    assert prying.agent("run", "Look", "-q") == 0

    assert find_seen(model) == EVERYTHING
    assert has_planted(prying)
    capsys.readouterr()
    assert prying.agent("mcp", "list") == 0
    assert "    runs with your permissions, without a sandbox\n" in capsys.readouterr().out


def test_a_server_runs_unsandboxed_if_none_is_required_and_the_list_shows_it(
    prying: Workspace, model: ModelServer, capsys: pytest.CaptureFixture[str]
) -> None:
    assert prying.agent("run", "Look", "-q") == 0

    assert find_seen(model) == EVERYTHING
    assert has_planted(prying)
    capsys.readouterr()
    assert prying.agent("mcp", "list", "--json") == 0
    assert json.loads(capsys.readouterr().out)[0]["sandbox"] == "outside"


def test_no_server_is_started_if_the_sandbox_is_required_but_disabled(
    prying: Workspace, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("AGENT_RUNTIME_PROFILE", "strict")
    monkeypatch.setenv("AGENT_SANDBOX_USE", "off")

    assert prying.agent("mcp", "list") == 9

    assert "needs a sandbox" in capsys.readouterr().err
