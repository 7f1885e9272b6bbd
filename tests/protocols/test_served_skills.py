"""`agent skill add mcp:SERVER/SKILL`: served files are checked against the manifest before display."""

import json
import shlex
import sys
from pathlib import Path
from urllib.parse import unquote

import pytest
from run_workspace import Workspace

from agent_command import AGENT

SERVER = Path(__file__).parent / "served_skill_server.py"


def name_server(workspace: Workspace, *args: str, command: str = sys.executable) -> None:
    servers = {"tides": {"command": command, "args": [*args]}}
    workspace.write(".agent/mcp.json", json.dumps({"mcpServers": servers}))
    assert workspace.agent("mcp", "accept", "tides", "--yes") == 0


def test_a_served_skill_is_installed_pinned_and_updated_like_any_other(
    workspace: Workspace, home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    name_server(workspace, str(SERVER))

    assert workspace.agent("skill", "add", "mcp:tides/tides", "--yes") == 0
    assert workspace.agent("skill", "lock") == 0
    assert workspace.agent("skill", "update", "tides", "--yes") == 0
    assert workspace.agent("skill", "info", "tides") == 0

    installed = home / ".agent" / "skills" / "tides"
    assert (installed / "references" / "moon.md").read_text(encoding="utf-8") == "# The moon\n"
    (locked,) = json.loads((workspace.folder / "skills.lock").read_text(encoding="utf-8"))["skills"]
    assert (locked["url"], locked["commit"]) == ("mcp:tides/tides", None)
    assert "mcp:tides/tides" in capsys.readouterr().out


@pytest.mark.parametrize("lie", ["digest", "size", "frontmatter", "outside", "twice", "many", "dynamic"])
def test_a_skill_that_differs_from_its_manifest_is_rejected(
    workspace: Workspace, home: Path, lie: str, capsys: pytest.CaptureFixture[str]
) -> None:
    name_server(workspace, str(SERVER), lie)

    assert workspace.agent("skill", "add", "mcp:tides/tides", "--yes") == 1

    assert not (home / ".agent" / "skills" / "tides").exists()
    assert "error:" in capsys.readouterr().err


@pytest.mark.parametrize(
    "name",
    [
        ".git/config",
        ".git/hooks/pre-commit",
        "a/.GIT/config",
        "%2Egit/config",
        "git~1/config",
        "x.pyc",
        "aux.md",
        "-rf",
    ],
)
def test_served_file_with_an_invalid_name_is_rejected(
    workspace: Workspace, home: Path, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    name_server(workspace, str(SERVER), f"file:{name}")

    assert workspace.agent("skill", "add", "mcp:tides/tides", "--yes") == 1

    assert not (home / ".agent" / "skills" / "tides").exists()
    assert f"File name {unquote(name)!r} is refused" in capsys.readouterr().err


def test_served_name_that_is_both_file_and_folder_is_rejected(
    workspace: Workspace, home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    name_server(workspace, str(SERVER), "file:references")

    assert workspace.agent("skill", "add", "mcp:tides/tides", "--yes") == 1

    assert "'references' is both a file and a folder" in capsys.readouterr().err


def test_an_unaccepted_server_gets_no_request(
    workspace: Workspace, home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    marker = workspace.folder / "started"
    servers = {"tides": {"command": "touch", "args": [str(marker)]}}
    workspace.write(".agent/mcp.json", json.dumps({"mcpServers": servers}))

    assert workspace.agent("skill", "add", "mcp:tides/tides", "--yes") == 2
    assert workspace.agent("skill", "add", "mcp:other/tides", "--yes") == 2
    assert workspace.agent("skill", "add", "mcp:tides", "--yes") == 2

    assert not marker.exists()
    assert "not accepted" in capsys.readouterr().err


def test_a_workspace_can_install_skills_served_by_another(workspace: Workspace, home: Path, tmp_path: Path) -> None:
    library = Workspace(tmp_path / "library")
    library.folder.mkdir()
    library.configure(model={"provider": "offline"})
    library.add_skill("moon", "Tell the phase of the moon.", phase="print('new')\n")
    serve = f"cd {shlex.quote(str(library.folder))} && exec {shlex.quote(str(AGENT))} mcp serve"
    name_server(workspace, "-c", serve, command="sh")

    assert workspace.agent("skill", "add", "mcp:tides/moon", "--no-trust") == 0

    assert (home / ".agent" / "skills" / "moon" / "scripts" / "phase.py").is_file()
