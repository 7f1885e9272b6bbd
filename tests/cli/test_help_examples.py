"""Every example in the help texts succeeds in a workspace created from the `starter` template."""

import json
import os
import shlex
import shutil
import sys
from pathlib import Path

import pytest

from agent_command import run_agent
from metier.cli.help import Example, load_texts
from metier.cli.main import run

EXAMPLES = [(path, example) for path, text in load_texts().items() for example in text.examples]
CAREFUL = "---\nname: Careful\ndescription: Asks about everything.\nprofile: guarded\n---\n\nAsk.\n"
SKILL = "---\nname: notes-helper\ndescription: Helps with notes.\n---\n\n# Notes helper\n\nRead the notes.\n"
SERVER = Path(__file__).with_name("search_mcp_server.py")


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A home with a workspace: a pending approval, a conversation, a schedule, an MCP server, a completed run."""
    home = tmp_path_factory.mktemp("home")
    folder = home / "work"
    folder.mkdir()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HOME", str(home))
        patch.delenv("AGENT_SKILLS", raising=False)
        _export_run(home, patch)
        patch.chdir(folder)
        assert run(["init", "--provider", "offline"]) == 0
        package = folder / "packages/notes-helper"
        package.mkdir(parents=True)
        (package / "SKILL.md").write_text(SKILL, encoding="utf-8")
        (folder / ".agent/agents/careful").mkdir()
        (folder / ".agent/agents/careful/AGENT.md").write_text(CAREFUL, encoding="utf-8")
        server = {"command": sys.executable, "args": [str(SERVER)]}
        (folder / ".agent/mcp.json").write_text(json.dumps({"mcpServers": {"docs": server}}), encoding="utf-8")
        assert run(["schedule", "add", "morning", "list the open tasks", "--cron", "@daily"]) == 0
        assert run(["run", "list the open tasks", "--quiet", "--agent", "careful"]) == 3
        assert run_agent("chat", "--context", "notes", cwd=folder, stdin="list the open tasks\n").returncode == 0
        assert run(["run", "list the open tasks", "--quiet"]) == 0
    return home


def _export_run(home: Path, patch: pytest.MonkeyPatch) -> None:
    """Export a run of another workspace."""
    (home / "other").mkdir()
    patch.chdir(home / "other")
    assert run(["init", "--provider", "offline"]) == 0
    assert run(["run", "list the open tasks", "--quiet"]) == 0
    assert run(["runs", "export", "latest", "-o", str(home / "work/shared.metier")]) == 0


@pytest.fixture
def place(prepared: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    home = tmp_path / "home"
    shutil.copytree(prepared, home, symlinks=True)
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.delenv("AGENT_SKILLS", raising=False)
    monkeypatch.setenv("AGENT_WORKER_AUTOSTART", "false")
    monkeypatch.chdir(home / "work")
    return home / "work"


@pytest.mark.parametrize(("path", "example"), EXAMPLES, ids=[example.line for _, example in EXAMPLES])
def test_example_of_a_help_text_succeeds(
    path: str, example: Example, place: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    line = example.line
    if path == "agent undo":
        # Undo needs a run that started in this folder; those of the copied store did not.
        assert run(["run", "list the open tasks", "--quiet"]) == 0
    if path in ("agent resume", "agent runs cancel"):
        assert run(["run", "list the open tasks", "--quiet", "--agent", "careful"]) == 3
    if path == "agent resume":
        assert run(["approve", find_approval(capsys)]) == 0
    if "APPROVAL" in line:
        line = line.replace("APPROVAL", find_approval(capsys))
    with Path(os.devnull).open(encoding="utf-8") as nothing:
        monkeypatch.setattr("sys.stdin", nothing)
        codes = [run(shlex.split(part)[1:]) for part in line.partition(" > ")[0].split(" && ")]

    assert path in f"{line} "
    assert codes == [0] * len(codes), capsys.readouterr().err


def find_approval(capsys: pytest.CaptureFixture[str]) -> str:
    """The ID of the newest pending approval."""
    capsys.readouterr()
    assert run(["approvals", "list", "--json"]) == 0
    return json.loads(capsys.readouterr().out)[-1]["approval_id"]
