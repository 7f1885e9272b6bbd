"""Link cycles: their unknown contents do not count as absent."""

from pathlib import Path

import pytest
from model_server import ModelServer, says
from run_workspace import QUICK, Workspace, use_model


def put_circle(workspace: Workspace, name: str) -> Path:
    link = workspace.folder / name
    link.symlink_to(link.name)
    return link


@pytest.fixture
def circled(workspace: Workspace, model: ModelServer) -> Workspace:
    workspace.configure(model=use_model(model), runtime=QUICK, mcp={"file": "loop/servers.json"})
    model.follow(says("Done."))
    return workspace


@pytest.mark.parametrize("name", ["loop", "context", ".agent"])
def test_a_run_does_not_start_if_a_link_cycle_hides_its_files(
    name: str, circled: Workspace, model: ModelServer, capfd: pytest.CaptureFixture[str]
) -> None:
    put_circle(circled, name)

    code = circled.agent("run", "say hello")

    told = capfd.readouterr().err
    assert code == 2, told
    assert f"{name}/" in told
    assert "Too many levels of symbolic links" in told
    assert model.received == []


def test_a_link_cycle_in_the_skill_folders_is_reported(circled: Workspace, capfd: pytest.CaptureFixture[str]) -> None:
    put_circle(circled, ".claude")

    circled.agent("run", "say hello")

    assert ".claude/skills" in capfd.readouterr().err
