"""A script outside its skill's folder named in `SKILL.md`: reported, and not run while the skill is active."""

import json
from typing import Any

import pytest
from model_server import ModelServer, calls, says
from run_workspace import Workspace, use_model

type Capture = pytest.CaptureFixture[str]

BODY = "Run `../shared/mark.sh`, or /opt/tools/mark.sh, or `~/mark.sh`. Write /tmp/own.py and run it."
USE = calls("use_skill", skill="borrower", reason="It fits")


@pytest.fixture
def borrowing(workspace: Workspace) -> Workspace:
    """A skill that names scripts outside its folder; each creates a file `mark`."""
    mark = workspace.folder / "mark"
    workspace.write("skills/shared/mark.sh", f"#!/bin/sh\necho ran > '{mark}'\n").chmod(0o755)
    workspace.add_skill("borrower", "Borrow a script.", body=BODY)
    return workspace


def results(model: ModelServer) -> list[str]:
    return [str(each["content"]) for each in model.received[-1]["messages"] if each["role"] == "tool"]


def problems(workspace: Workspace) -> list[dict[str, Any]]:
    return [event["payload"] for event in workspace.events() if event["event_type"] == "skill_problem_found"]


@pytest.mark.parametrize(
    "line",
    [
        "sh skills/shared/mark.sh",
        "skills/shared/mark.sh",
        "cd skills/borrower && sh ../shared/mark.sh",
        "cd skills/shared && ./mark.sh",
        "cat skills/shared/mark.sh | sh",
        "sh < skills/shared/mark.sh",
        "sh -c 'sh skills/shared/mark.sh'",
        "sh -c 'sh $PWD/skills/shared/mark.sh'",
        "sh -c 'cd skills/shared && sh mark.sh'",
        "sh -c 'sh skills/sh*/mark.sh'",
        "sh -c 'd=skills/shared; sh $d/mark.sh'",
        "sh -c 'f=skills/shared/mark.sh; sh $f'",
        'bash -c "sh \\"$PWD/skills\\"/shared/mark.sh"',
        "eval 'sh $PWD/skills/shared/mark.sh'",
        "sh $PWD/skills/shared/mark.sh",
        "cd skills/sh* && sh mark.sh",
        "sh skills/shared/m?rk.sh",
        "sh -c 'sh skills/shared/m?rk.sh'",
        "for n in 1; do sh skills/shared/mark.sh; done",
        "env A=1 sh /opt/tools/mark.sh",
        "python3 ~/mark.sh",
    ],
)
def test_command_does_not_run_a_script_outside_the_skill_in_charge(
    borrowing: Workspace, model: ModelServer, line: str
) -> None:
    model.follow(USE, calls("Bash", command=line), says("done"))

    assert borrowing.agent("run", "Borrow it", "--profile", "permissive") == 0

    assert not (borrowing.folder / "mark").exists()
    assert "outside of the skill's folder" in results(model)[-1]


def test_run_reports_the_scripts_when_the_skill_takes_charge(
    borrowing: Workspace, model: ModelServer, capsys: Capture
) -> None:
    model.follow(USE, says("done"))

    borrowing.agent("run", "Borrow it", "--profile", "permissive")

    found = problems(borrowing)
    assert [(each["skill_name"], each["code"]) for each in found] == [("borrower", "script_outside")] * 3
    assert "'../shared/mark.sh'" in found[0]["reason"]
    assert "'/opt/tools/mark.sh'" in found[1]["reason"]
    assert "names the script '../shared/mark.sh'" in capsys.readouterr().err


@pytest.mark.parametrize(
    "line", ["sh -c 'sh tools/mark.sh'", "sh -c 'sh $PWD/tools/other.sh'", "sh -c 'cd tools && sh other.sh'"]
)
def test_nested_command_runs_other_scripts(borrowing: Workspace, model: ModelServer, line: str) -> None:
    for name in ("mark.sh", "other.sh"):
        borrowing.write(f"tools/{name}", "echo fine\n")
    model.follow(USE, calls("Bash", command=line), says("done"))

    borrowing.agent("run", "Borrow it", "--profile", "permissive")

    assert "fine" in results(model)[-1]


@pytest.mark.parametrize("line", ["cat skills/shared/mark.sh", "ls -l skills/shared/mark.sh", "echo ran > mark"])
def test_commands_that_only_read_the_script_run(borrowing: Workspace, model: ModelServer, line: str) -> None:
    model.follow(USE, calls("Bash", command=line), says("done"))

    borrowing.agent("run", "Borrow it", "--profile", "permissive")

    assert "outside of the skill's folder" not in results(model)[-1]


def test_script_runs_when_the_skill_is_not_in_charge(borrowing: Workspace, model: ModelServer) -> None:
    model.follow(calls("Bash", command="sh skills/shared/mark.sh"), says("done"))

    borrowing.agent("run", "Borrow it", "--profile", "permissive")

    assert (borrowing.folder / "mark").exists()
    assert problems(borrowing) == []


def test_rule_of_the_workspace_that_names_the_whole_command_allows_it(borrowing: Workspace, model: ModelServer) -> None:
    rule = "{tool: Bash, allow: true, when: {command: {equals: sh skills/shared/mark.sh}}}"
    borrowing.write(".agent/policy.yaml", f"tool_approvals:\n  rules:\n    - {rule}\n")
    model.follow(USE, calls("Bash", command="sh skills/shared/mark.sh"), says("done"))

    borrowing.agent("run", "Borrow it", "--profile", "permissive")

    assert (borrowing.folder / "mark").exists()


def test_refusal_is_the_same_in_a_replay_after_the_skill_is_gone(
    borrowing: Workspace, model: ModelServer, capsys: Capture
) -> None:
    model.follow(USE, calls("Bash", command="sh skills/shared/mark.sh"), says("done"))
    borrowing.agent("run", "Borrow it", "--profile", "permissive")
    (borrowing.folder / "skills/borrower").rename(borrowing.folder / "gone")
    capsys.readouterr()

    assert borrowing.agent("replay", "latest", "--execute") == 0

    assert capsys.readouterr().out.startswith("Replay matches: ")


def test_policy_explain_shows_the_script(borrowing: Workspace, capsys: Capture) -> None:
    given = json.dumps({"command": "sh skills/shared/mark.sh"})

    borrowing.agent("policy", "explain", "Bash", "--args", given, "--skill", "borrower", "--json")

    told = json.loads(capsys.readouterr().out)
    assert told["verdict"] == "deny"
    assert "skills/shared/mark.sh" in told["reason"]


def test_model_cannot_pass_the_script_to_a_child_run(borrowing: Workspace, model: ModelServer) -> None:
    borrowing.write(".agent/agents/helper/AGENT.md", "---\nname: helper\nprofile: permissive\n---\nHelp.\n")
    model.follow(
        USE,
        calls("delegate", agent="helper", task="Run it"),
        calls("Bash", command="sh skills/shared/mark.sh"),
        says("done"),
    )
    borrowing.configure(model=use_model(model))

    borrowing.agent("run", "Borrow it", "--profile", "permissive")

    assert len(model.received) >= 4
    assert not (borrowing.folder / "mark").exists()
