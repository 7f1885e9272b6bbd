"""Skills that share a name are called by ID, the folder's path."""

import json
from pathlib import Path
from typing import Any, cast

import pytest
from model_server import ModelServer, calls, says
from run_workspace import SKILL, Workspace

WHERE = 'import json\nprint(json.dumps({{"summary": "the {side} script"}}))\n'
AGENT = "---\nname: Lead\nskills: [{skills}]\n---\nLead the work.\n"
TASK = "---\nname: Look\nskills: [{skills}]\n---\nLook at the code.\n"


@pytest.fixture
def teams(workspace: Workspace) -> Workspace:
    """Two skills with the same name in two folders, and one with a unique name in a third."""
    for side in ("backend", "frontend"):
        text = SKILL.format(name="review", description=f"Review {side} code.", body=f"The {side} way.")
        workspace.write(f".agent/skills/{side}/review/SKILL.md", text)
        workspace.write(f".agent/skills/{side}/review/scripts/where.py", WHERE.format(side=side))
    text = SKILL.format(name="deploy", description="Deploy the service.", body="Roll it out.")
    workspace.write(".agent/skills/ops/deploy/SKILL.md", text)
    return workspace


def read_system(model: ModelServer) -> str:
    return json.dumps(model.received[0]["messages"])


def read_results(model: ModelServer) -> list[str]:
    messages = cast("list[dict[str, Any]]", model.received[-1]["messages"])
    return [str(message["content"]) for message in messages if message["role"] == "tool"]


def test_both_skills_are_in_the_prompt_and_each_is_used_by_its_id(teams: Workspace, model: ModelServer) -> None:
    model.follow(
        calls("use_skill", skill="frontend/review", reason="it is a page"),
        calls("script_run", skill_name="frontend/review", script_name="where"),
        says("Done."),
    )

    assert teams.agent("run", "Review the code") == 0

    assert "backend/review" in read_system(model)
    assert "frontend/review" in read_system(model)
    assert "The frontend way." in json.dumps(model.received[-1]["messages"])
    assert "the frontend script" in read_results(model)[-1]


def test_a_skill_whose_name_is_unique_answers_to_its_name_and_to_its_id(teams: Workspace, model: ModelServer) -> None:
    for name in ("deploy", "ops/deploy", "Ops/Deploy"):
        model.received.clear()
        model.follow(calls("use_skill", skill=name, reason="roll out"), says("Done."))

        assert teams.agent("run", "Deploy it") == 0

        assert "Skill 'deploy' is in charge" in read_results(model)[-1]
        assert "Roll it out." in json.dumps(model.received[-1]["messages"])


def test_an_agent_that_lists_one_id_has_only_that_skill(teams: Workspace, model: ModelServer) -> None:
    teams.write(".agent/agents/lead/AGENT.md", AGENT.format(skills="frontend/review, ops/deploy"))
    model.follow(says("Done."))

    assert teams.agent("validate") == 0
    assert teams.agent("run", "Review the code", "--agent", "lead") == 0

    assert "frontend/review" in read_system(model)
    assert "deploy: Deploy the service." in read_system(model)
    assert "backend/review" not in read_system(model)


@pytest.mark.parametrize("definition", ["agent", "task"])
def test_the_shared_name_is_rejected_with_the_candidate_ids(
    teams: Workspace, model: ModelServer, capsys: pytest.CaptureFixture[str], definition: str
) -> None:
    teams.write(".agent/agents/lead/AGENT.md", AGENT.format(skills="review" if definition == "agent" else ""))
    teams.write(".agent/tasks/look/TASK.md", TASK.format(skills="review" if definition == "task" else ""))
    model.follow(says("Never asked."))
    command = ["run", "Review", "--agent", "lead"] if definition == "agent" else ["task", "run", "look"]

    assert teams.agent("validate") == 1
    told = capsys.readouterr()
    assert teams.agent(*command) == 2

    for text in (told.out + told.err, capsys.readouterr().err):
        assert "No skill is called 'review'" in text
        assert "backend/review, frontend/review" in text
    assert model.received == []


def test_a_task_step_has_the_skill_that_it_lists_by_id(teams: Workspace, model: ModelServer) -> None:
    teams.write(".agent/tasks/look/TASK.md", TASK.format(skills="backend/review, ops/deploy"))
    model.follow(says("Done."))

    assert teams.agent("task", "run", "look") == 0

    assert "backend/review" in read_system(model)
    assert "deploy: Deploy the service." in read_system(model)
    assert "frontend/review" not in read_system(model)


def test_the_list_of_a_skill_allows_only_the_listed_id(teams: Workspace, model: ModelServer) -> None:
    text = "---\nname: gate\ndescription: Decide who looks.\nskills: [backend/review, ops/deploy]\n---\nDecide.\n"
    teams.write(".agent/skills/gate/SKILL.md", text)
    model.follow(
        calls("use_skill", skill="gate", reason="begin"),
        calls("use_skill", skill="frontend/review", reason="look"),
        calls("use_skill", skill="deploy", reason="roll out"),
        says("Done."),
    )

    assert teams.agent("run", "Decide") == 0

    _, refused, taken = read_results(model)
    assert "'frontend/review' is not among the skills of skill 'gate'" in refused
    assert "Skill 'deploy' is in charge" in taken


def test_skills_with_the_same_name_are_listed_and_inspected_by_id(
    teams: Workspace, capsys: pytest.CaptureFixture[str]
) -> None:
    # A folder of the project has the path of the ID: it is no skill, so the ID is meant.
    (teams.folder / "frontend/review").mkdir(parents=True)

    assert teams.agent("skills", "list") == 0
    listed = capsys.readouterr()
    assert teams.agent("skills", "inspect", "frontend/review", "--json") == 0
    shown = json.loads(capsys.readouterr().out)
    assert teams.agent("skill", "info", "backend/review", "--json") == 0
    told = json.loads(capsys.readouterr().out)
    assert teams.agent("skill", "run", "frontend/review", "where") == 0
    assert "the frontend script" in capsys.readouterr().out
    assert teams.agent("check") == 0

    assert "backend/review  [workspace]  active  Review backend code." in listed.out.splitlines()
    assert "frontend/review  [workspace]  active  Review frontend code." in listed.out.splitlines()
    assert "duplicate_name" not in listed.err
    assert (shown["id"], shown["name"]) == ("frontend/review", "frontend/review")
    assert Path(told["path"]).parts[-2:] == ("backend", "review")
    assert "frontend/review (active) - 1 script" in capsys.readouterr().out


def test_a_paused_run_continues_with_the_pinned_skill_of_its_id(teams: Workspace, model: ModelServer) -> None:
    model.follow(
        calls("use_skill", skill="frontend/review", reason="look"), calls("ask_user", question="Which?"), says("Done.")
    )
    assert teams.agent("run", "Review the code") == 4
    run_id = teams.run_ids()[-1]
    text = SKILL.format(name="review", description="Review frontend code.", body="Another way.")
    teams.write(".agent/skills/frontend/review/SKILL.md", text)

    assert teams.agent("resume", run_id, "--input", "answer=all") == 0

    assert "The frontend way." in json.dumps(model.received[-1]["messages"])
    assert teams.agent("replay", run_id) == 0


@pytest.mark.parametrize("kind", ["agent", "task"])
def test_duplicate_id_is_an_error_if_it_is_used_or_listed(
    workspace: Workspace, model: ModelServer, capsys: pytest.CaptureFixture[str], kind: str
) -> None:
    model.follow(says("Never asked."))
    for base in (".agent", ".nanobot"):
        workspace.write(f"{base}/{kind}s/lead/{kind.upper()}.md", "---\nname: Lead\n---\nDo it.\n")
    commands = {
        "agent": (["run", "Do it", "--agent", "lead"], ["agents", "show", "lead"], ["agents", "list"]),
        "task": (["task", "run", "lead"], ["task", "show", "lead"], ["task", "list"]),
    }[kind]

    for command in commands:
        assert workspace.agent(*command) == (1 if "list" in command else 2)
        told = capsys.readouterr().err
        assert "duplicate_id" in told
        assert ".nanobot" in told
    assert model.received == []
    workspace.write(f".agent/{kind}s/other/{kind.upper()}.md", "---\nname: Other\n---\nDo it.\n")
    others = {"agent": ["run", "Do it", "--agent", "other"], "task": ["task", "run", "other"]}
    assert workspace.agent(*others[kind]) == 0
    assert workspace.agent("run", "Do it") == 0
