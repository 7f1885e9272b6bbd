"""`.mcp.json` next to `.agent/mcp.json`, and the commands that change them."""

import io
import json
import sys

import pytest
from mcp_workspace import HOSTILE, get_reports, use_hostile
from model_server import ModelServer, says
from run_workspace import Workspace

type Capture = pytest.CaptureFixture[str]


def test_server_of_the_shared_file_is_used_after_a_user_accepted_it(
    workspace: Workspace, model: ModelServer, capsys: Capture
) -> None:
    workspace.write(".mcp.json", json.dumps({"mcpServers": {"bad": use_hostile()}}))
    model.follow(says("Nothing"))
    assert workspace.agent("run", "Look", "-q") == 0
    assert "bad___count" not in json.dumps(model.received[-1].get("tools", []))

    assert workspace.agent("mcp", "accept", "bad", "--yes") == 0
    assert workspace.agent("run", "Look", "-q") == 0

    assert "bad___count" in json.dumps(model.received[-1]["tools"])
    capsys.readouterr()


def test_own_file_overrides_the_shared_one_whose_unusable_entries_are_warnings(
    workspace: Workspace, capsys: Capture
) -> None:
    workspace.write(".agent/mcp.json", json.dumps({"mcpServers": {"time": {"command": "own-time"}}}))
    shared = {
        "time": {"command": "their-time"},
        "old": {"type": "sse", "url": "https://a.example"},
        "new": {"command": "x"},
    }
    workspace.write(".mcp.json", json.dumps({"mcpServers": shared, "inputs": []}))

    assert workspace.agent("mcp", "list", "--no-start", "--json") == 0

    shown = capsys.readouterr()
    assert {row["server"]: row["target"] for row in json.loads(shown.out)} == {"time": "own-time", "new": "x"}
    assert "'sse'" in shown.err


def test_broken_shared_file_is_reported_by_runs_checks_and_doctor(
    workspace: Workspace, model: ModelServer, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    workspace.write(".mcp.json", '{\n "mcpServers": {\n  "a": {"command": "true",}\n }\n}\n')
    model.follow(says("Done."), says("Hello."))

    # Like other programs that share this file, a run continues without its servers.
    assert workspace.agent("run", "Go") == 0
    said = capsys.readouterr().err
    assert ".mcp.json:3: The file is not JSON" in said
    assert "agent mcp list" in said
    monkeypatch.setattr("sys.stdin", io.StringIO("Hello\n"))
    assert workspace.agent("chat") == 0
    assert ".mcp.json:3: The file is not JSON" in capsys.readouterr().err
    assert get_reports(workspace) == [(".mcp.json:3", "unusable")]

    assert workspace.agent("check") == 0
    assert ".mcp.json:3: warning: The file is not JSON" in capsys.readouterr().err
    assert workspace.agent("doctor", "--json") == 0
    (finding,) = (each for each in json.loads(capsys.readouterr().out) if each["name"] == ".mcp.json")
    assert (finding["area"], finding["state"]) == ("mcp", "problem")
    assert ".mcp.json:3: warning: The file is not JSON" in finding["detail"]


def test_run_reports_only_problems_that_leave_a_server_out(workspace: Workspace, model: ModelServer) -> None:
    shared = {"mcpServers": {"old": {"type": "sse", "url": "https://old.example/sse"}}, "inputs": {}}
    workspace.write(".mcp.json", json.dumps(shared))
    model.follow(says("Done."))

    assert workspace.agent("run", "Go", "--quiet") == 0

    assert get_reports(workspace) == [(".mcp.json:1", "unusable")]


def test_server_is_added_accepted_and_removed_by_commands(workspace: Workspace, capsys: Capture) -> None:
    command = [sys.executable, str(HOSTILE)]

    assert workspace.agent("mcp", "add", "time", "--env", "MODE=${MODE:-plain}", "--", *command) == 0

    written = json.loads((workspace.folder / ".agent/mcp.json").read_text())
    assert written["mcpServers"]["time"]["env"] == {"MODE": "${MODE:-plain}"}
    assert workspace.agent("mcp", "list", "--json") == 0
    assert json.loads(capsys.readouterr().out)[0]["state"] == "not accepted"
    assert workspace.agent("mcp", "accept", "time", "--yes") == 0
    assert workspace.agent("mcp", "add", "time", "--", "other") == 2
    assert workspace.agent("mcp", "remove", "time") == 0
    assert workspace.agent("mcp", "remove", "time") == 2
    capsys.readouterr()
    assert workspace.agent("mcp", "add", "time", "--env", "MODE=${MODE:-plain}", "--", *command) == 0
    assert workspace.agent("mcp", "list", "--json") == 0
    assert json.loads(capsys.readouterr().out)[0]["state"] == "not accepted"


def test_other_servers_and_keys_in_the_file_are_kept(workspace: Workspace) -> None:
    workspace.write(".mcp.json", json.dumps({"inputs": [1], "mcpServers": {"a": {"command": "a", "timeout": 3}}}))

    assert workspace.agent("mcp", "add", "b", "--url", "https://b.example/mcp", "--shared") == 0
    assert workspace.agent("mcp", "remove", "b") == 0

    assert json.loads((workspace.folder / ".mcp.json").read_text()) == {
        "inputs": [1],
        "mcpServers": {"a": {"command": "a", "timeout": 3}},
    }


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("x",), "either a command"),
        (("x", "--url", "https://a.example", "--", "y"), "either a command"),
        (("bad name", "--", "y"), "bad name"),
        (("x", "--env", "TOKEN=" + "ghp_" + "a1B2" * 9, "--", "y"), "looks like a secret"),
        (("x", "--env", "TOKEN", "--", "y"), "NAME=VALUE"),
        (("x", "--url", "ftp://a.example"), "must begin with http"),
    ],
)
def test_a_failed_add_changes_no_file(workspace: Workspace, words: tuple[str, ...], says: str, capsys: Capture) -> None:
    assert workspace.agent("mcp", "add", *words) == 2

    assert says in capsys.readouterr().err
    assert not (workspace.folder / ".agent/mcp.json").exists()


def test_invalid_file_is_not_overwritten(workspace: Workspace, capsys: Capture) -> None:
    file = workspace.write(".agent/mcp.json", "{broken")

    assert workspace.agent("mcp", "add", "x", "--", "y") == 2

    assert file.read_text() == "{broken"
    assert "not JSON" in capsys.readouterr().err
