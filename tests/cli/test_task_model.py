"""`agent task run --model`: the flag applies if the agent of a step allows it, and is rejected otherwise."""

import json
from typing import Any

import pytest
from agent_files import add_agent
from model_server import ModelServer, calls, says
from run_workspace import QUICK, Workspace, use_model

type Capture = pytest.CaptureFixture[str]


@pytest.fixture
def task(workspace: Workspace) -> Workspace:
    """A task with two steps by an agent with its own model."""
    add_agent(workspace.folder, "checker", "model: small", "allowed_models: [medium]")
    workspace.write(".agent/tasks/check/TASK.md", "---\nname: Check\nagent: checker\nnext: b.md\n---\n\nCheck it.\n")
    workspace.write(".agent/tasks/check/b.md", "---\nname: Tell\n---\n\nTell it.\n")
    return workspace


def list_records(workspace: Workspace) -> list[dict[str, Any]]:
    files = (workspace.folder / "runs").rglob("run.json")
    return [json.loads(file.read_text(encoding="utf-8")) for file in files]


def test_the_flag_overrides_the_model_of_the_agent_of_a_step(task: Workspace, model: ModelServer) -> None:
    model.follow(says("Checked."), says("Told."))

    assert task.agent("task", "run", "check", "--model", "medium", "-q") == 0

    assert [sent["model"] for sent in model.received] == ["medium", "medium"]
    records = list_records(task)
    assert [record["model"] for record in records] == ["medium"] * 3
    # The server says of itself that it is `m`.
    assert sorted(record["answered_by"] for record in records) == [[], ["m"], ["m"]]


def test_a_paused_step_continues_with_the_requested_model(task: Workspace, model: ModelServer) -> None:
    model.follow(calls("ask_user", question="Which?"), says("Checked."), says("Told."))
    assert task.agent("task", "run", "check", "--model", "medium", "-q") == 4

    assert task.agent("resume", "latest", "--input", "answer=this", "-q") == 0

    assert [sent["model"] for sent in model.received] == ["medium"] * 3


def test_without_the_flag_the_model_of_the_agent_is_used(task: Workspace, model: ModelServer) -> None:
    model.follow(says("Checked."), says("Told."))

    assert task.agent("task", "run", "check", "-q") == 0

    assert [sent["model"] for sent in model.received] == ["small", "small"]


@pytest.mark.parametrize("front", [("model: small", "allowed_models: [medium]"), ("allowed_models: [medium]",)])
def test_a_model_not_allowed_for_the_agent_of_a_step_is_rejected_before_the_start(
    *, front: tuple[str, ...], task: Workspace, model: ModelServer, capsys: Capture
) -> None:
    add_agent(task.folder, "checker", *front)

    assert task.agent("task", "run", "check", "--model", "large", "-q") == 2

    assert "Model 'large' is not one that agent 'checker' may use" in capsys.readouterr().err
    assert (model.received, task.run_ids()) == ([], [])


def test_a_model_not_allowed_by_the_host_is_rejected(task: Workspace, model: ModelServer, capsys: Capture) -> None:
    options = {**use_model(model), "allowed_models": ["m", "small"]}
    task.configure(model=options, runtime=QUICK)

    assert task.agent("task", "run", "check", "--model", "medium", "-q") == 2

    assert "Model 'medium' is not allowed here" in capsys.readouterr().err
    assert (model.received, task.run_ids()) == ([], [])
