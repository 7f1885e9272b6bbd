"""`agent approvals`: an approval outlives its process and has exactly one decision."""

import hashlib
import json
import re
import sqlite3
import subprocess
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from model_server import ModelServer, Reply, calls, says
from run_workspace import Workspace

from agent_command import AGENT, run_agent

pytestmark = pytest.mark.slow

type Capture = pytest.CaptureFixture[str]

ECHO = """import json, pathlib, sys
with (pathlib.Path(__file__).parents[3] / "out" / "ran.txt").open("a") as file:
    file.write("x")
print(json.dumps({"summary": " ".join(sys.argv[1:])}))
"""
"""Leaves a letter in the workspace; its own folder may be closed to it."""
ASK = ("run", "Greet", "--profile", "guarded")


@pytest.fixture
def parked(workspace: Workspace, model: ModelServer, capsys: Capture) -> str:
    """The ID of a pending approval."""
    workspace.add_skill("echo", "Say it again with a script.", echo=ECHO)
    (workspace.folder / "out").mkdir(exist_ok=True)
    model.follow(calls("script_run", skill_name="echo", script_name="echo", args=["one"]), says("Done."))
    assert workspace.agent(*ASK, "--output-format", "json") == 3
    (approval,) = json.loads(capsys.readouterr().out)["approvals"]
    assert (approval["tool"], approval["arguments"]["args"]) == ("script_run", ["one"])
    return approval["approval_id"]


def count_runs(workspace: Workspace) -> int:
    """Number of executions of the script, in any folder."""
    return sum(len(file.read_text(encoding="utf-8")) for file in workspace.folder.rglob("ran.txt"))


def show(workspace: Workspace, approval: str, capsys: Capture) -> dict[str, Any]:
    capsys.readouterr()
    assert workspace.agent("approvals", "show", approval, "--json") == 0
    return json.loads(capsys.readouterr().out)


def test_an_approval_shows_the_exact_call_and_its_hash(workspace: Workspace, parked: str, capsys: Capture) -> None:
    shown = show(workspace, parked, capsys)

    call = {"arguments": {"args": ["one"], "script_name": "echo", "skill_name": "echo"}, "tool": "script_run"}
    exact = json.dumps(call, sort_keys=True, separators=(",", ":")).encode()
    assert shown["arguments"] == call["arguments"]
    assert shown["hash"] == hashlib.sha256(exact).hexdigest()
    assert shown["status"] == "open"
    workspace.agent("approvals", "list")
    assert parked in capsys.readouterr().out


def test_latest_names_the_only_pending_approval(
    workspace: Workspace, model: ModelServer, parked: str, capsys: Capture
) -> None:
    assert show(workspace, "latest", capsys)["approval_id"] == parked
    assert workspace.agent("approve", "latest", "--by", "ada") == 0
    assert capsys.readouterr().out == f"{parked} approved by ada\n"

    assert workspace.agent("deny", "latest") == 2
    assert "No approval is pending" in capsys.readouterr().err

    model.follow(calls("Write", path="a.txt", content="x"), calls("Write", path="b.txt", content="x"), says("Done."))
    workspace.agent(*ASK)
    workspace.agent(*ASK)
    capsys.readouterr()
    assert workspace.agent("approve", "latest") == 2
    said = capsys.readouterr().err
    assert "More than one approval is pending" in said
    assert "agent approvals list" in said


def test_an_approval_shows_the_risk_of_its_tool(workspace: Workspace, model: ModelServer, capsys: Capture) -> None:
    model.follow(calls("Bash", command="make all"), says("Done."))
    assert workspace.agent(*ASK, "--output-format", "json") == 3
    (approval,) = json.loads(capsys.readouterr().out)["approvals"]

    assert show(workspace, approval["approval_id"], capsys)["risk"] == "high"
    workspace.agent("approvals", "show", approval["approval_id"])
    assert "Bash (risk: high) wants to run with" in capsys.readouterr().out


def test_resume_shows_the_steps_that_waited_for_an_answer(
    workspace: Workspace, model: ModelServer, capsys: Capture
) -> None:
    model.follow(calls("Write", path="a.txt", content="x"), calls("Write", path="b.txt", content="x"), says("Done."))
    shown: list[str] = []
    workspace.agent(*ASK)
    for answer in ("approve", "deny"):
        (approval,) = re.findall(r"agent approve (ap-\w+)", capsys.readouterr().err)
        workspace.agent(answer, approval)
        capsys.readouterr()
        workspace.agent("resume", "latest")
        shown.append(capsys.readouterr().err)
        workspace.agent("resume", "latest")

    assert "✓ Write a.txt (+1 -0)" in shown[0]
    assert "✗ Write b.txt   denied" in shown[1]
    assert "a.txt" not in shown[1]


def test_an_approval_is_found_without_reading_the_journals_of_other_runs(
    workspace: Workspace, model: ModelServer, parked: str, capsys: Capture
) -> None:
    model.follow(calls("script_run", skill_name="echo", script_name="echo", args=["two"]), says("Done."))
    assert workspace.agent(*ASK, "--output-format", "json") == 3
    (second,) = json.loads(capsys.readouterr().out)["approvals"]
    with sqlite3.connect(workspace.folder / "runs" / "state.db") as connection:
        (first_run,) = connection.execute("SELECT run_id FROM approvals WHERE approval_id = ?", (parked,)).fetchone()
        connection.execute("UPDATE journal SET data = x'00' WHERE run_id = ?", (first_run,))
    connection.close()

    assert show(workspace, second["approval_id"], capsys)["arguments"]["args"] == ["two"]
    assert workspace.agent("approvals", "show", second["approval_id"][:-2]) == 0
    assert workspace.agent("approvals", "deny", second["approval_id"]) == 0


def test_a_call_approved_in_another_process_runs_once_after_resume(
    workspace: Workspace, model: ModelServer, parked: str
) -> None:
    subprocess.run([AGENT, "approvals", "approve", parked, "--by", "ada"], cwd=workspace.folder, check=True)

    resumed = run_agent("resume", "latest", cwd=workspace.folder)

    assert (resumed.returncode, resumed.stdout) == (0, "Done.\n")
    assert count_runs(workspace) == 1
    assert "one" in model.received[-1]["messages"][-1]["content"]
    (decided,) = [event for event in workspace.events() if event["event_type"] == "approval_decided"]
    assert (decided["payload"]["decision"], decided["payload"]["decided_by"]) == ("approved", "ada")
    assert workspace.agent("resume", "latest") == 0
    assert count_runs(workspace) == 1


def test_a_run_with_a_pending_approval_keeps_waiting(workspace: Workspace, model: ModelServer, parked: str) -> None:
    assert workspace.agent("resume", "latest") == 3

    assert count_runs(workspace) == 0
    assert len(model.received) == 1
    assert parked


def test_edited_arguments_are_run_and_recorded(
    workspace: Workspace, model: ModelServer, parked: str, *, capsys: Capture
) -> None:
    edited = '{"skill_name": "echo", "script_name": "echo", "args": ["two"]}'

    assert workspace.agent("approvals", "approve", parked, "--edit-args", edited) == 0
    assert workspace.agent("resume", "latest") == 0

    assert "two" in model.received[-1]["messages"][-1]["content"]
    (decided,) = [event for event in workspace.events() if event["event_type"] == "approval_decided"]
    assert decided["payload"]["edited"] is True
    assert json.loads(str(show(workspace, parked, capsys)["edited_call"]))["arguments"]["args"] == ["two"]


def test_an_edit_is_reported_to_the_model_and_the_diff_of_both_calls_is_shown(
    workspace: Workspace, model: ModelServer, parked: str, *, capsys: Capture
) -> None:
    edited = '{"skill_name": "echo", "script_name": "echo", "args": ["two"]}'
    workspace.agent("approvals", "approve", parked, "--edit-args", edited)

    assert workspace.agent("resume", "latest") == 0

    result = model.received[-1]["messages"][-1]["content"]
    assert result.startswith('[A person edited this call before approving it. It was made with {"args": ["two"]')
    capsys.readouterr()
    assert workspace.agent("approvals", "show", parked) == 0
    shown = capsys.readouterr().out
    assert '-args: ["one"]\n+args: ["two"]' in shown
    assert "edited by the approver to run with" in shown


@pytest.mark.parametrize(
    ("edited", "message"),
    [
        ('{"skill_name": 3}', "The edited arguments cannot be used: "),
        ("[1]", "--edit-args must be a JSON object"),
        ("{", "--edit-args is not valid JSON"),
    ],
)
def test_invalid_edited_arguments_leave_the_approval_open(
    *, edited: str, message: str, workspace: Workspace, parked: str, capsys: Capture
) -> None:
    assert workspace.agent("approvals", "approve", parked, "--edit-args", edited) == 2

    assert message in capsys.readouterr().err
    assert show(workspace, parked, capsys)["status"] == "open"


@pytest.mark.parametrize(
    ("path", "reason"),
    [
        ("secret/a.txt", "Rule 1 of the host denies this call"),
        (".git/config", "Path '.git/config' is protected"),
        ("../a.txt", "leads out of the folders that are open to you"),
    ],
)
def test_an_edit_into_a_denied_call_leaves_the_approval_open(
    *, path: str, reason: str, workspace: Workspace, model: ModelServer, capsys: Capture
) -> None:
    workspace.write(".agent/policy.yaml", "rules: [{tool: Write, allow: false, when: {path: {startsWith: secret/}}}]\n")
    model.follow(calls("Write", path="a.txt", content="1"), says("Done."))
    assert workspace.agent(*ASK, "--output-format", "json") == 3
    (approval,) = json.loads(capsys.readouterr().out)["approvals"]
    edited = json.dumps({"path": path, "content": "1"})

    assert workspace.agent("approvals", "approve", approval["approval_id"], "--edit-args", edited) == 2

    told = capsys.readouterr().err
    assert "The edited arguments cannot be used: the call would be denied. " in told
    assert reason in told
    assert show(workspace, approval["approval_id"], capsys)["status"] == "open"


def test_an_approval_of_a_run_that_was_cancelled_is_reported(
    workspace: Workspace, parked: str, capsys: Capture
) -> None:
    assert workspace.agent("runs", "cancel", "latest") == 0

    assert workspace.agent("approvals", "approve", parked) == 10

    assert f"Approval {parked!r} is closed: its run was canceled" in capsys.readouterr().err
    assert show(workspace, parked, capsys)["decision_reason"] == "The run was canceled"


def test_a_denied_call_reaches_the_model_with_the_reason(workspace: Workspace, model: ModelServer, parked: str) -> None:
    assert workspace.agent("approvals", "deny", parked, "--reason", "Too loud") == 0
    assert workspace.agent("resume", "latest") == 0

    assert model.received[-1]["messages"][-1]["content"].endswith('"message": "Not run: Too loud"}')
    assert count_runs(workspace) == 0


def test_the_second_decision_is_rejected_and_recorded(workspace: Workspace, parked: str, capsys: Capture) -> None:
    assert workspace.agent("approvals", "deny", parked, "--by", "ada", "--reason", "No") == 0

    assert workspace.agent("approvals", "approve", parked, "--by", "eve") == 10

    assert f"error: Approval {parked!r} was already denied by 'ada'" in capsys.readouterr().err
    shown = show(workspace, parked, capsys)
    attempts = shown["attempts"]
    assert [(one["decided_by"], one["status"], one["counted"]) for one in attempts] == [
        ("ada", "denied", True),
        ("eve", "approved", False),
    ]
    assert shown["status"] == "denied"


def test_exactly_one_of_many_concurrent_decisions_wins(workspace: Workspace, parked: str, capsys: Capture) -> None:
    people = [
        workspace.start("approvals", "approve" if number % 2 else "deny", parked, "--by", f"p{number}")
        for number in range(6)
    ]
    codes = {f"p{number}": person.wait(60) for number, person in enumerate(people)}
    for person in people:
        person.communicate()

    shown = show(workspace, parked, capsys)
    attempts = shown["attempts"]
    assert sorted(codes.values()) == [0, 10, 10, 10, 10, 10]
    assert codes[str(shown["decided_by"])] == 0
    assert sorted(one["decided_by"] for one in attempts) == sorted(codes)
    assert [one["decided_by"] for one in attempts if one["counted"]] == [shown["decided_by"]]


def test_an_expired_approval_is_closed_and_reported_to_the_model(
    workspace: Workspace, model: ModelServer, parked: str, *, capsys: Capture
) -> None:
    late = (datetime.now(UTC) - timedelta(hours=1)).isoformat(timespec="microseconds")
    with sqlite3.connect(workspace.folder / "runs" / "state.db") as database:
        database.execute("UPDATE approvals SET expires_at = ?", (late,))
    database.close()

    assert workspace.agent("approvals", "approve", parked) == 10
    assert f"error: Approval {parked!r} expired before it was decided" in capsys.readouterr().err
    assert workspace.agent("resume", "latest") == 0

    assert model.received[-1]["messages"][-1]["content"].endswith('"message": "Not run: No decision came in time"}')
    assert count_runs(workspace) == 0
    assert show(workspace, parked, capsys)["status"] == "expired"


@pytest.mark.parametrize(("setting", "hours"), [(None, 168), ("1.5", 1.5)])
def test_an_approval_expires_after_a_week_or_after_the_hours_of_the_setting(
    setting: str | None, hours: float, workspace: Workspace, model: ModelServer, *, capsys: Capture
) -> None:
    if setting:
        settings = json.loads((workspace.folder / "agent.yaml").read_text("utf-8"))
        workspace.configure(**settings | {"runtime": {"approval_expiry_hours": float(setting)}})
    model.follow(calls("Bash", command="touch made.txt"), says("Done."))
    assert workspace.agent("run", "Make it", "--profile", "guarded", "--quiet") == 3
    capsys.readouterr()

    assert workspace.agent("approvals", "list", "--json") == 0

    (shown,) = json.loads(capsys.readouterr().out)
    left = datetime.fromisoformat(shown["expires_at"]) - datetime.fromisoformat(shown["created_at"])
    assert left == timedelta(hours=hours)


def test_an_approval_that_does_not_exist_is_reported(workspace: Workspace, parked: str, capsys: Capture) -> None:
    assert workspace.agent("approvals", "approve", "ap-nothing") == 2

    assert "There is no approval 'ap-nothing'" in capsys.readouterr().err
    assert parked


def test_a_tool_disabled_after_approval_does_not_run(workspace: Workspace, model: ModelServer, parked: str) -> None:
    workspace.agent("approvals", "approve", parked)
    (workspace.folder / ".agent").mkdir()
    (workspace.folder / ".agent" / "tool-access.json").write_text('{"script_run": false}', encoding="utf-8")

    assert workspace.agent("resume", "latest") == 0

    assert "'script_run' is turned off" in model.received[-1]["messages"][-1]["content"]
    assert count_runs(workspace) == 0


@pytest.mark.parametrize("first", ["a.txt", "secret/a.txt"])
def test_all_calls_of_a_reply_are_asked_about_together_even_with_a_denied_one(
    workspace: Workspace, model: ModelServer, capsys: Capture, first: str
) -> None:
    workspace.write(".agent/policy.yaml", "rules: [{tool: Write, allow: false, when: {path: {startsWith: secret/}}}]\n")
    paths = [first, "secret/b.txt", "c.txt", "d.txt"]
    written: tuple[tuple[str, dict[str, object]], ...] = tuple(
        ("Write", {"path": path, "content": "x"}) for path in paths
    )
    model.follow(Reply(calls=written), says("Done."))
    capsys.readouterr()

    assert workspace.agent(*ASK, "--output-format", "json") == 3

    asked = [approval["arguments"]["path"] for approval in json.loads(capsys.readouterr().out)["approvals"]]
    assert asked == [path for path in paths if not path.startswith("secret/")]
