"""`tool-access.json`: an unknown name stops a run, and both locations apply."""

import json

import pytest
from model_server import ModelServer, calls, says
from run_workspace import Workspace


def test_misspelled_tool_stops_the_run_with_a_suggestion(
    workspace: Workspace, model: ModelServer, capfd: pytest.CaptureFixture[str]
) -> None:
    workspace.write(".agent/tool-access.json", '{\n  "Bsh": false\n}')
    model.follow(says("done"))

    exit_code = workspace.agent("run", "Do it")

    told = capfd.readouterr().err
    assert exit_code == 2
    assert model.received == []
    assert "tool-access.json:2: error: No tool is called 'Bsh' [unknown_tool]" in told
    assert "Did you mean 'Bash'?" in told


@pytest.mark.parametrize("folder", [".agent", "context"])
def test_tool_disabled_by_a_file_is_neither_offered_nor_executed(
    workspace: Workspace, model: ModelServer, folder: str
) -> None:
    workspace.write(f"{folder}/tool-access.json", '{"tools": {"Bash": {"enabled": false}}}')
    model.follow(calls("Bash", command="touch made"), says("done"))

    workspace.agent("run", "Do it")

    offered = json.dumps(model.received[0]["tools"])
    assert '"Read"' in offered
    assert '"Bash"' not in offered
    assert not (workspace.folder / "made").exists()


def test_tool_disabled_by_either_file_is_disabled(workspace: Workspace, model: ModelServer) -> None:
    workspace.write(".agent/tool-access.json", '{"Bash": false, "Read": true}')
    workspace.write("context/tool-access.json", '{"Read": false}')
    model.follow(says("done"))

    workspace.agent("run", "Do it")

    offered = {tool["function"]["name"] for tool in model.received[0]["tools"]}
    assert offered.isdisjoint({"Bash", "Read"})


@pytest.mark.parametrize("tool", ["Bash", "script_run", "run_task", "delegate"])
def test_policy_explain_denies_a_tool_disabled_by_the_file(
    workspace: Workspace, capsys: pytest.CaptureFixture[str], tool: str
) -> None:
    workspace.write(".agent/tool-access.json", f'{{\n  "Read": true,\n  "{tool}": false\n}}')
    workspace.write(".agent/policy.yaml", f"tool_approvals:\n  rules:\n    - {{tool: {tool}, allow: true}}\n")
    given = {
        "Bash": {"command": "ls"},
        "script_run": {"skill_name": "greeter", "script_name": "greet"},
        "run_task": {"task": "t"},
        "delegate": {"agent": "a", "task": "t"},
    }

    assert workspace.agent("policy", "explain", tool, "--args", json.dumps(given[tool]), "--json") == 0

    told = json.loads(capsys.readouterr().out)
    assert told["verdict"] == "deny"
    assert f"{tool!r} is turned off" in told["reason"]
    assert told["rule"]["file"].endswith("tool-access.json")
    assert told["rule"]["line"] == 3
