"""Limits can be raised: the error names the command that continues the run."""

import json
import re

import pytest
from chat_pty import CTRL_D, ENTER, agent_terminal, chat_terminal
from model_server import ModelServer, Reply, calls, fails, says
from run_workspace import QUICK, Workspace, use_model
from test_offline_outcome import add_scripted
from test_run import PRICED

pytestmark = pytest.mark.slow

type Capture = pytest.CaptureFixture[str]


def look(letter: str) -> Reply:
    return calls("Glob", pattern=f"*.{letter}")


def test_a_run_at_its_turn_limit_continues_with_a_higher_one(
    workspace: Workspace, model: ModelServer, capsys: Capture
) -> None:
    model.follow(look("a"), look("b"), look("c"), says("Done."))
    assert workspace.agent("run", "Look around", "--max-turns", "2") == 7
    run_id = workspace.run_ids()[0]
    assert f"next:    agent resume {run_id} --max-turns 4" in capsys.readouterr().err

    assert workspace.agent("resume", run_id) == 2
    assert f"agent resume {run_id} --max-turns 4" in capsys.readouterr().err
    assert workspace.agent("resume", run_id, "--max-turns", "2") == 2
    assert len(model.received) == 2
    assert workspace.agent("resume", run_id, "--max-turns", "4", "--quiet") == 0

    assert capsys.readouterr().out == "Done.\n"
    assert len(model.received) == 4
    assert workspace.events()[-1]["payload"]["turns"] == 4
    raised = next(event for event in workspace.events() if event["event_type"] == "limits_raised")
    assert raised["payload"]["max_turns"] == 4
    record = json.loads((workspace.folder / "runs" / run_id / "run.json").read_text())
    assert record["status"] == "completed"
    assert workspace.agent("replay", run_id, "--execute") == 0


def test_a_run_at_its_cost_limit_continues_with_a_higher_one(
    workspace: Workspace, model: ModelServer, capsys: Capture
) -> None:
    model.follow(look("a"), look("b"), says("Done."))
    assert workspace.agent("run", "Look around", "--model", PRICED, "--max-cost-usd", "0.000001") == 6
    command = re.search(r"next:    agent resume (\S+) --max-cost-usd (\S+)", capsys.readouterr().err)
    assert command is not None

    assert workspace.agent("resume", command[1], "--max-cost-usd", "5", "--quiet") == 0


def test_a_run_that_took_too_long_continues_with_more_time(
    workspace: Workspace, model: ModelServer, capsys: Capture
) -> None:
    model.follow(says("Done."))
    model.silent.set()
    assert workspace.agent("run", "Think", "--timeout", "0.5") == 7
    model.silent.clear()
    model.released.set()
    run_id = workspace.run_ids()[0]
    assert f"agent resume {run_id} --timeout" in capsys.readouterr().err

    assert workspace.agent("resume", run_id, "--timeout", "60", "--quiet") == 0


def test_a_run_ended_by_a_provider_error_is_retried(workspace: Workspace, model: ModelServer, capsys: Capture) -> None:
    workspace.configure(model=use_model(model), runtime={**QUICK, "max_llm_retries": 0})
    model.follow(look("a"), fails(500), says("At last."))
    assert workspace.agent("run", "Look around") == 8
    assert f"next:    agent resume {workspace.run_ids()[0]}" in capsys.readouterr().err

    assert workspace.agent("resume", "latest", "--quiet") == 0

    assert capsys.readouterr().out == "At last.\n"
    assert len(model.received) == 3


def test_a_task_step_at_its_limit_continues_from_there(
    workspace: Workspace, model: ModelServer, capsys: Capture
) -> None:
    workspace.configure(model=use_model(model), runtime={**QUICK, "max_turns": 2})
    workspace.write(".agent/tasks/note/TASK.md", "---\nname: note\ntools: [Glob]\n---\n\nWrite a note.\n")
    model.follow(look("a"), look("b"), look("c"), says("Noted."))
    workspace.agent("task", "run", "note")
    told = capsys.readouterr().err
    run_id = workspace.run_ids()[0]
    assert f"agent resume {run_id} --max-turns 4" in told

    assert workspace.agent("resume", run_id, "--max-turns", "4", "--quiet") == 0

    assert capsys.readouterr().out.strip() == "Noted."
    assert len(model.received) == 4


def test_an_offline_run_at_its_turn_limit_continues_with_the_remaining_parts(
    workspace: Workspace, capsys: Capture
) -> None:
    add_scripted(workspace, "stock-taker", "Take stock of the shelves.", 'print(\'{"summary": "three shelves"}\')\n')
    add_scripted(workspace, "poet", "Write a poem about the sea.", 'print(\'{"summary": "waves"}\')\n')
    task = "take stock of the shelves, then write a poem about the sea"
    assert workspace.agent("run", "--provider", "offline", "--max-turns", "2", task) == 7
    capsys.readouterr()

    assert workspace.agent("resume", "latest", "--max-turns", "8", "--quiet") == 0

    out = capsys.readouterr().out
    assert "three shelves" in out
    assert "waves" in out


def test_a_user_at_a_terminal_is_asked_whether_to_continue(workspace: Workspace, model: ModelServer) -> None:
    model.follow(look("a"), look("b"), says("Done."))
    with agent_terminal(workspace.folder, "run", "Look around", "--max-turns", "1") as terminal:
        terminal.wait_for("The run took 1 turn, which is the limit")
        terminal.wait_for("Continue with --max-turns 2? ")
        terminal.type("1" + ENTER)
        terminal.wait_for("took 1 turn already")
        terminal.type("3" + ENTER)
        terminal.wait_for("Done.")
        assert terminal.wait_for_end() == 0


def test_continue_in_a_chat_raises_the_limit(workspace: Workspace, model: ModelServer) -> None:
    workspace.configure(model=use_model(model), runtime={**QUICK, "max_turns": 1})
    model.follow(look("a"), says("Found nothing."))
    with chat_terminal(workspace.folder) as terminal:
        terminal.wait_for("you>")
        terminal.type("Look around" + ENTER)
        terminal.wait_for("type /continue to retry")
        terminal.wait_for("you>")
        terminal.type("/continue" + ENTER)
        terminal.wait_for("Found nothing.")
        terminal.wait_for("you>")
        terminal.type(CTRL_D)
        assert terminal.wait_for_end() == 0
