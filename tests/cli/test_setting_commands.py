"""Commands that change the settings of a workspace, and `agent check`."""

import json
from pathlib import Path

import pytest
from model_server import ModelServer, calls, fails, says
from run_workspace import Workspace, use_model

type Capture = pytest.CaptureFixture[str]


def test_config_set_changes_one_line_and_rejects_invalid_values(workspace: Workspace, capsys: Capture) -> None:
    file = workspace.write("agent.yaml", "# mine\nruntime:\n  max_turns: 8  # few\n  profile: guarded\n")

    assert workspace.agent("config", "set", "runtime.max_turns", "12") == 0
    assert file.read_text() == "# mine\nruntime:\n  max_turns: 12  # few\n  profile: guarded\n"
    assert workspace.agent("config", "set", "runtime.max_turns", "many") == 2
    assert workspace.agent("config", "set", "runtime.max_turn", "3") == 2

    assert "Did you mean 'runtime.max_turns'?" in capsys.readouterr().err
    assert "max_turns: 12" in file.read_text()


def test_config_set_can_write_the_user_settings(workspace: Workspace, tmp_path: Path) -> None:
    (workspace.folder / "agent.yaml").unlink()

    assert workspace.agent("config", "set", "runtime.max_turns", "30", "--user") == 0

    assert not (workspace.folder / "agent.yaml").exists()
    written = list((tmp_path / "home").rglob("agent.yaml"))
    assert [file.read_text() for file in written] == ["runtime:\n  max_turns: 30\n"]


def test_an_enabled_skill_is_active_until_it_is_disabled(workspace: Workspace, capsys: Capture) -> None:
    def list_active() -> set[str]:
        capsys.readouterr()
        assert workspace.agent("skills", "list", "--json") == 0
        return {skill["name"] for skill in json.loads(capsys.readouterr().out) if skill["active"]}

    before = list_active()
    assert workspace.agent("skills", "enable", "content-summarizer") == 0
    assert list_active() == {*before, "content-summarizer"}
    assert workspace.agent("skills", "disable", "content-summarizer") == 0
    assert list_active() == before
    assert workspace.agent("skills", "enable", "content-sumarizer") == 2
    assert "content-summarizer" in capsys.readouterr().err
    assert workspace.agent("skills", "enable", "greeter") == 2


def test_check_names_every_problem_of_settings_agents_and_rules(workspace: Workspace, capsys: Capture) -> None:
    assert workspace.agent("check") == 0
    workspace.write(".agent/policy.yaml", "tool_approvals:\n  rules:\n    - tool: Bsh\n      allow: true\n")
    workspace.write(".agent/agents/keeper/AGENT.md", "---\nname: Keeper\nprofil: guarded\n---\nBe brief.\n")
    capsys.readouterr()

    assert workspace.agent("check") == 1

    told = capsys.readouterr()
    assert "Bsh" in told.out + told.err
    assert "profil" in told.out + told.err


def test_init_writes_project_instructions_and_keeps_existing_ones(
    workspace: Workspace, tmp_path: Path, capsys: Capture
) -> None:
    new, old = tmp_path / "new", tmp_path / "old"
    old.mkdir()
    (old / "CLAUDE.md").write_text("Mine.\n", encoding="utf-8")

    assert workspace.agent("init", str(new), "--provider", "offline") == 0
    assert workspace.agent("init", str(old), "--provider", "offline") == 0

    assert "## How to check a change" in (new / "AGENTS.md").read_text(encoding="utf-8")
    assert not (old / "AGENTS.md").exists()
    assert str(new / "AGENTS.md") in capsys.readouterr().out


def test_a_misspelled_model_gets_a_suggestion(workspace: Workspace, model: ModelServer, capsys: Capture) -> None:
    named = {**use_model(model), "name": "gpt-5.6-lna"}
    workspace.configure(model=named, runtime={"max_llm_retries": 0})
    model.follow(fails(404))
    assert workspace.agent("run", "Hi") == 8
    assert "Did you mean 'gpt-5.6-luna'?" in capsys.readouterr().err

    folder = workspace.folder / ".agent/agents/keeper"
    folder.mkdir(parents=True)
    (folder / "AGENT.md").write_text("---\nname: Keeper\nmodel: m\nallowed_models: [biggest]\n---\nBe brief.\n")
    assert workspace.agent("run", "Hi", "--agent", "keeper", "--model", "bigest") == 2
    assert "Did you mean 'biggest'?" in capsys.readouterr().err


def test_approve_and_deny_with_resume_continue_the_run(
    workspace: Workspace, model: ModelServer, capsys: Capture
) -> None:
    model.follow(calls("Write", path="made.txt", content="x"), says("All done."))
    assert workspace.agent("run", "Make it", "--profile", "guarded", "--json") == 3
    (approval,) = json.loads(capsys.readouterr().out)["approvals"]

    assert workspace.agent("approvals", "approve", approval["approval_id"], "--resume") == 0

    assert "All done." in capsys.readouterr().out
    assert (workspace.folder / "made.txt").read_text() == "x"
    model.follow(calls("Write", path="other.txt", content="x"), says("As you say."))
    assert workspace.agent("run", "Make it", "--profile", "guarded", "--json") == 3
    (approval,) = json.loads(capsys.readouterr().out)["approvals"]
    assert workspace.agent("approvals", "deny", approval["approval_id"], "--resume", "--reason", "No") == 0
    assert "As you say." in capsys.readouterr().out
    assert not (workspace.folder / "other.txt").exists()


def test_config_set_takes_a_list_as_json(workspace: Workspace) -> None:
    assert workspace.agent("config", "set", "model.allowed_models", '["a/one", "b/two"]') == 0

    assert "[a/one, b/two]" in (workspace.folder / "agent.yaml").read_text()
