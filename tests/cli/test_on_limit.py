"""`--on-limit park`: a run at its limit pauses instead of failing and continues after the limit is raised."""

import json

import pytest
from model_server import ModelServer, calls, says
from run_workspace import QUICK, Workspace, use_model

type Capture = pytest.CaptureFixture[str]


def test_run_pauses_at_its_turn_limit_and_continues_with_a_higher_one(
    workspace: Workspace, model: ModelServer, capsys: Capture
) -> None:
    model.follow(calls("Glob", pattern="*.a"), calls("Glob", pattern="*.b"), says("Done"))

    assert workspace.agent("run", "Look", "--max-turns", "1", "--on-limit", "park", "--json") == 7

    outcome = json.loads(capsys.readouterr().out)
    assert (outcome["status"], outcome["reason"]) == ("paused", "limit")
    assert "run_failed" not in workspace.event_types()

    assert workspace.agent("resume", "latest") == 2
    assert "--max-turns 2" in capsys.readouterr().err
    assert workspace.agent("resume", "latest", "--max-turns", "2", "-q") == 7
    assert workspace.agent("resume", "latest", "--max-turns", "9", "-q") == 0
    assert capsys.readouterr().out == "Done\n"
    assert workspace.agent("replay", "latest", "--execute") == 0


def test_run_pauses_at_its_budget_with_its_own_exit_code(
    workspace: Workspace, model: ModelServer, capsys: Capture
) -> None:
    prices = "openai:\n  m: {window_tokens: 100000, prices: {input: 1000, output: 1000, as_of: 2026-10-10}}\n"
    workspace.write("facts.yaml", prices)
    workspace.configure(model={**use_model(model), "facts_file": "facts.yaml"}, runtime={**QUICK, "on_limit": "park"})
    model.follow(calls("Glob", pattern="*.a"), says("Done"))

    assert workspace.agent("run", "Look", "--max-cost-usd", "0.01") == 6

    told = capsys.readouterr().err
    assert "next:    agent resume" in told
    assert "--max-cost-usd" in told
    assert workspace.agent("resume", "latest", "--max-cost-usd", "9", "-q") == 0
    assert workspace.agent("replay", "latest", "--execute") == 0


def test_run_pauses_at_its_time_limit_and_sends_the_request_again_on_resume(
    workspace: Workspace, model: ModelServer, capsys: Capture
) -> None:
    model.follow(says("Done"))
    model.silent.set()

    assert workspace.agent("run", "Look", "--timeout", "0.5", "--on-limit", "park", "-q") == 7

    model.silent.clear()
    model.released.set()
    assert workspace.agent("resume", "latest", "--timeout", "60", "-q") == 0
    assert capsys.readouterr().out == "Done\n"
    assert workspace.agent("replay", "latest", "--execute") == 0
