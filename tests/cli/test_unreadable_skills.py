"""A run in a workspace with skills that cannot be read: it goes on without them, and says so."""

import json

import pytest
from model_server import ModelServer, says
from run_workspace import Workspace

type Capture = pytest.CaptureFixture[str]
UNREADABLE = "---\nversion: 1\n---\n"


def test_a_run_names_each_skill_that_it_cannot_read(workspace: Workspace, model: ModelServer, capsys: Capture) -> None:
    workspace.write(".agent/skills/team/bad/SKILL.md", UNREADABLE)
    lost = workspace.write(".agent/skills/lost/README.md", "").parent
    (lost / "SKILL.md").symlink_to("/nowhere/SKILL.md")
    model.follow(says("Done."))

    assert workspace.agent("run", "Greet") == 0

    told = capsys.readouterr().err
    failed = [event["payload"] for event in workspace.events() if event["event_type"] == "skill_load_failed"]
    assert [(each["skill_name"], each["code"]) for each in failed] == [
        ("bad", "skill_broken"),
        ("lost", "dangling_link"),
    ]
    assert "Skill 'team/bad' cannot be loaded: Field 'description' is missing" in failed[0]["reason"]
    assert "Skill 'team/bad' cannot be loaded" in told
    loaded = next(event for event in workspace.events() if event["event_type"] == "skill_catalog_loaded")
    record = json.loads((workspace.folder / "runs" / workspace.run_ids()[-1] / "run.json").read_text())
    assert loaded["payload"]["problems"] == record["skill_problems"] == 2


def test_an_agent_that_names_a_skill_that_cannot_be_read_is_told_why(workspace: Workspace, capsys: Capture) -> None:
    workspace.write(".agent/skills/team/bad/SKILL.md", UNREADABLE)
    workspace.write(".agent/agents/lead/AGENT.md", "---\nname: Lead\nskills: [team/bad]\n---\nLead.\n")

    assert workspace.agent("run", "Greet", "--agent", "lead") == 2

    assert "Skill 'team/bad' cannot be loaded: Field 'description' is missing" in capsys.readouterr().err
