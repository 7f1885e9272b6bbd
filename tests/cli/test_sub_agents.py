"""A run that starts several agents concurrently: screen, exit codes, answers, JSON, replay."""

import json
import re
from collections.abc import Iterator
from typing import Any

import pytest
from agent_files import add_agent
from chat_pty import agent_terminal
from model_server import calls, running_model, says
from role_model import RoleModel
from run_workspace import Workspace, use_model

type Capture = pytest.CaptureFixture[str]

TASKS = [
    {"agent": "reader", "task": "Read the notes"},
    {"agent": "failer", "task": "Do what cannot be done"},
    {"agent": "asker", "task": "Ask the user"},
]


@pytest.fixture
def team(workspace: Workspace) -> Iterator[RoleModel]:
    """A team of three agents: one reads, one fails, one asks."""
    for name in ("reader", "failer", "asker"):
        add_agent(workspace.folder, name, body=f"You are the {name}.")
    workspace.write("notes.txt", "Bring milk\n")
    model = RoleModel(
        lines={
            "reader": [calls("Read", path="notes.txt"), says("The notes say: milk")],
            "failer": [calls("Write", path="made.txt", content="x")],
            "asker": [calls("ask_user", question="Which colour?"), says("It is blue")],
            "boss": [calls("delegate", tasks=TASKS), says("All three answered")],
        }
    )
    with running_model(model):
        workspace.configure(model=use_model(model), runtime={"max_turns": 20})
        yield model


def read_results(model: RoleModel) -> str:
    """Return the results in the last request of the first agent."""
    last = [body for body in model.received if "delegate" in json.dumps(body["messages"])][-1]
    return next(str(message["content"]) for message in last["messages"] if message["role"] == "tool")


def read_json(capsys: Capture) -> dict[str, Any]:
    return json.loads(capsys.readouterr().out)


def test_three_concurrent_agents_return_all_results_despite_a_failure_and_a_question(
    workspace: Workspace, team: RoleModel, capsys: Capture
) -> None:
    assert workspace.agent("run", "--json", "Look around") == 4

    parked = read_json(capsys)
    states = {child["agent"]: child["status"] for child in parked["children"]}
    assert parked["status"] == "delegating"
    assert parked["waits_for"].startswith("child-")
    assert states == {"reader": "completed", "failer": "escalated", "asker": "input_required"}
    assert not (workspace.folder / "made.txt").exists()

    assert workspace.agent("resume", parked["run_id"], "--input", "answer=blue", "--output-format", "json") == 0

    ended = read_json(capsys)
    results = read_results(team)
    assert ended["result"] == "All three answered"
    assert [child["status"] for child in ended["children"]] == ["completed", "escalated", "completed"]
    assert results.index("[1 of 3: reader]") < results.index("[2 of 3: failer, failed]")
    assert results.index("The notes say: milk") < results.index("It is blue")
    assert workspace.agent("replay", parked["run_id"], "--execute") == 0


def test_json_of_a_waiting_run_counts_the_turns_of_its_children(
    workspace: Workspace, team: RoleModel, capsys: Capture
) -> None:
    del team
    workspace.agent("run", "Look around")
    closing = capsys.readouterr().err.splitlines()
    workspace.agent("runs", "show", "latest", "--json")
    waiting = read_json(capsys)
    workspace.agent("resume", waiting["run_id"], "--input", "answer=blue", "--json")
    ended = read_json(capsys)

    assert any("· 8 turns · 800 in · 80 out ·" in line for line in closing)
    assert (waiting["turns"], waiting["usage"]) == (8, {"input_tokens": 800, "output_tokens": 80})
    assert (ended["turns"], ended["usage"]) == (10, {"input_tokens": 1000, "output_tokens": 100})


def test_json_of_a_waiting_task_counts_the_turns_of_its_steps(
    workspace: Workspace, team: RoleModel, capsys: Capture
) -> None:
    del team
    workspace.write(".agent/tasks/ask/TASK.md", "---\nname: Ask\nagent: asker\n---\nAsk the user.\n")

    workspace.agent("task", "run", "ask", "--json")

    waiting = read_json(capsys)
    assert (waiting["status"], waiting["turns"], waiting["usage"]["input_tokens"]) == ("delegating", 1, 100)


def test_screen_nests_steps_below_the_name_of_each_agent(
    workspace: Workspace, team: RoleModel, capsys: Capture
) -> None:
    assert workspace.agent("run", "Look around") == 4

    lines = capsys.readouterr().err.splitlines()
    heading = [line for line in lines if "↳" in line]
    assert [word for line in heading for word in ("reader", "failer", "asker") if f"↳ {word}" in line][:3] == [
        "reader",
        "failer",
        "asker",
    ]
    reading = next(number for number, line in enumerate(lines) if "Read" in line and "notes.txt" in line)
    above = [line for line in lines[:reading] if "↳" in line][-1]
    assert "reader" in above
    assert lines[reading].startswith("  ")


def test_children_are_shown_below_their_parent(workspace: Workspace, team: RoleModel, capsys: Capture) -> None:
    del team
    workspace.agent("run", "-q", "Look around")
    capsys.readouterr()

    assert workspace.agent("runs", "show", "latest") == 0

    shown = capsys.readouterr().out
    assert [line.split()[-1] for line in shown.splitlines() if line.startswith("child:")] == [
        "reader",
        "failer",
        "asker",
    ]


def test_all_pending_approvals_of_children_are_listed_together(
    workspace: Workspace, team: RoleModel, capsys: Capture
) -> None:
    ask = ("tool_approvals:", "  rules:", "    - {tool: Read, verdict: ask}")
    for name in ("reader", "asker"):
        add_agent(workspace.folder, name, *ask, body=f"You are the {name}.")
    read = [calls("Read", path="notes.txt"), says("Read")]
    team.lines = {**team.lines, "reader": read, "asker": read}

    assert workspace.agent("run", "--json", "Look around") == 3

    parked = read_json(capsys)
    assert len(parked["approvals"]) == 2
    for approval in parked["approvals"]:
        assert workspace.agent("approvals", "approve", approval["approval_id"]) == 0
    assert workspace.agent("resume", parked["run_id"], "-q") == 0


def test_each_agent_is_one_block_at_a_terminal(workspace: Workspace, team: RoleModel) -> None:
    team.lines = {
        **team.lines,
        "asker": [says("Blue")],
        "failer": [calls("Write", path="made.txt", content="x\n"), says("Changed")],
    }
    with agent_terminal(workspace.folder, "run", "Look around") as terminal:
        shown = terminal.wait_for("All three answered")
        assert terminal.wait_for_end() == 0

    blocks = [line.strip() for line in shown.splitlines() if re.match(r"✓ (reader|failer|asker) ", line)]
    assert sorted(re.sub(r"\d[\d.]* s$", "N s", line) for line in blocks) == [
        "✓ asker Ask the user · 0 steps · N s",
        "✓ failer Do what cannot be done · 1 step · N s",
        "✓ reader Read the notes · 1 step · N s",
    ]
    assert "↳" not in shown
