"""A run whose folder is moved by one of its own commands reports it."""

import json

import pytest
from model_server import ModelServer, calls, says
from run_workspace import Workspace

type Capture = pytest.CaptureFixture[str]


@pytest.mark.parametrize("line", ["mv runs elsewhere", "rm -rf runs", "mv runs/2* ."])
def test_a_command_that_moves_the_runs_folder_ends_the_run_with_a_message(
    *, line: str, workspace: Workspace, model: ModelServer, capsys: Capture
) -> None:
    model.follow(calls("Bash", command=line), says("Done."))

    code = workspace.agent("run", "Tidy up", "--profile", "permissive", "--output-format", "json")

    told = capsys.readouterr()
    assert (code, json.loads(told.out)["status"]) == (1, "failed")
    assert "was moved or removed while a program of the run was at work" in told.out + told.err
    assert len(model.received) == 1


def test_a_command_that_does_not_touch_the_runs_folder_is_not_delayed(workspace: Workspace, model: ModelServer) -> None:
    model.follow(calls("Bash", command="touch a && mv a b"), says("Done."))

    assert workspace.agent("run", "Tidy up", "--profile", "permissive") == 0
