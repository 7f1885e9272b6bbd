"""Commands in a subfolder use the workspace's definitions and runs; folders of other users are ignored."""

import json
import os
from pathlib import Path

import pytest
from agent_files import add_agent
from model_server import ModelServer, calls, says
from run_workspace import Workspace, use_model

from metier.settings.discovery import get_workspace

type Capture = pytest.CaptureFixture[str]


@pytest.fixture
def below(workspace: Workspace, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A workspace with `src/deep` as the current folder."""
    folder = workspace.folder / "src/deep"
    folder.mkdir(parents=True)
    add_agent(workspace.folder, "checker")
    monkeypatch.chdir(folder)
    return folder


def test_run_in_a_subfolder_uses_the_settings_agents_and_skills_of_the_workspace(
    workspace: Workspace, below: Path, model: ModelServer, capsys: Capture
) -> None:
    model.follow(calls("Glob", pattern="**/SKILL.md"), says("Done."))

    assert workspace.agent("run", "--agent", "checker", "Greet somebody") == 0

    assert f"Workspace: {workspace.folder}\n" in capsys.readouterr().err
    assert "greeter" in json.dumps(model.received[0]["messages"])
    assert "skills/greeter/SKILL.md" in json.dumps(model.received[1]["messages"])
    assert len(workspace.run_ids()) == 1
    assert list(below.iterdir()) == []


def test_commands_in_a_subfolder_find_runs_agents_and_skills(
    workspace: Workspace, below: Path, model: ModelServer, capsys: Capture
) -> None:
    model.follow(says("Done."))
    workspace.agent("run", "Greet")
    capsys.readouterr()

    for words, expected in (
        (["runs", "list"], workspace.run_ids()[0]),
        (["runs", "show", "latest"], workspace.run_ids()[0]),
        (["agents", "list"], "checker"),
        (["skills", "list"], "greeter"),
        (["validate"], "1 agent, 1 skill"),
        (["check"], "greeter"),
        (["config", "show"], "openai"),
    ):
        assert workspace.agent(*words) == 0, words
        told = capsys.readouterr()
        assert expected in told.out + told.err, words
    assert list(below.iterdir()) == []


def test_paths_that_the_user_types_are_relative_to_the_subfolder(
    workspace: Workspace, below: Path, model: ModelServer
) -> None:
    (below / "mine/own").mkdir(parents=True)
    (below / "mine/own/SKILL.md").write_text("---\nname: own\ndescription: Only here.\n---\n")
    (below / "other.yaml").write_text(json.dumps({"model": {**use_model(model), "name": "other"}}))
    model.follow(says("Done."))

    assert workspace.agent("run", "Greet", "--skills-dir", "mine", "--config", "other.yaml") == 0

    assert model.received[0]["model"] == "other"
    assert "Only here." in json.dumps(model.received[0]["messages"])


def test_nearest_folder_with_settings_or_definitions_is_the_workspace(tmp_path: Path) -> None:
    home = tmp_path / "home"
    deep = home / "project/a/b"
    deep.mkdir(parents=True)
    assert get_workspace(deep, home=home) == deep

    (home / ".agent/skills").mkdir(parents=True)
    assert get_workspace(deep, home=home) == deep, "the home folder holds the user's own skills"

    (home / "project/.agent").mkdir()
    assert get_workspace(deep, home=home) == home / "project"

    (home / "project/a/agent.yaml").touch()
    assert get_workspace(deep, home=home) == home / "project/a"
    assert get_workspace(home, home=home) == home


def test_search_stops_at_the_top_of_a_repository(tmp_path: Path) -> None:
    deep = tmp_path / "project/vendor/clone/src"
    deep.mkdir(parents=True)
    (tmp_path / "project/.agent").mkdir()
    assert get_workspace(deep, home=tmp_path / "home") == tmp_path / "project"

    (tmp_path / "project/vendor/clone/.git").mkdir()
    assert get_workspace(deep, home=tmp_path / "home") == deep

    (tmp_path / "project/vendor/clone/.nanobot").mkdir()
    assert get_workspace(deep, home=tmp_path / "home") == tmp_path / "project/vendor/clone"


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() != 0, reason="only root can give files away")
@pytest.mark.parametrize("planted", ["project", "project/.agent"])
def test_parent_folders_of_another_user_are_ignored(tmp_path: Path, planted: str) -> None:
    deep = tmp_path / "project/mine"
    deep.mkdir(parents=True)
    (tmp_path / "project/.agent").mkdir()
    os.chown(tmp_path / planted, 65534, 65534)

    assert get_workspace(deep, home=tmp_path / "home") == deep


def test_untrusted_parent_workspace_follows_the_trust_rules(
    workspace: Workspace, below: Path, model: ModelServer, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AGENT_TRUST", "named")
    monkeypatch.setenv("AGENT_MODEL_PROVIDERS_OPENAI_BASE_URL", model.url)
    monkeypatch.setenv("AGENT_MODEL_PROVIDER", "openai")
    monkeypatch.setenv("AGENT_MODEL_NAME", "m")
    model.follow(calls("script_run", skill_name="greeter", script_name="greet"), says("Done."))

    workspace.agent("run", "Greet", "--profile", "permissive")

    results = [str(each["content"]) for each in model.received[-1]["messages"] if each["role"] == "tool"]
    assert "hello from the script" not in results[0]
    assert "folder_not_trusted" in capsys.readouterr().err
    assert list(below.iterdir()) == []
