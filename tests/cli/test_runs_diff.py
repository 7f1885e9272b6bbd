"""`agent runs diff`: the first difference between two runs."""

import json

import pytest
from model_server import ModelServer, calls, says
from run_workspace import Workspace

pytestmark = pytest.mark.slow

type Capture = pytest.CaptureFixture[str]


def run_twice(workspace: Workspace, model: ModelServer, second: tuple[object, ...]) -> tuple[str, str]:
    model.follow(calls("script_run", skill_name="greeter", script_name="greet", args=["Kim"]), says("Greeted."))
    workspace.agent("run", "Greet", "-q")
    first = workspace.run_ids()[0]
    model.follow(*second)  # pyright: ignore[reportArgumentType]
    workspace.agent("run", "Greet", "-q")
    return first, next(found for found in workspace.run_ids() if found != first)


def test_runs_with_the_same_steps_are_equal(workspace: Workspace, model: ModelServer, capsys: Capture) -> None:
    same = (calls("script_run", skill_name="greeter", script_name="greet", args=["Kim"]), says("Greeted."))
    one, other = run_twice(workspace, model, same)
    capsys.readouterr()

    assert workspace.agent("runs", "diff", one, other) == 0

    assert capsys.readouterr().out.startswith("Runs match: ")


def test_the_first_argument_that_differs_is_shown_side_by_side(
    workspace: Workspace, model: ModelServer, capsys: Capture
) -> None:
    second = (calls("script_run", skill_name="greeter", script_name="greet", args=["Lee"]), says("Greeted."))
    one, other = run_twice(workspace, model, second)
    capsys.readouterr()

    assert workspace.agent("runs", "diff", one, other) == 1
    out = capsys.readouterr().out
    assert "decision.planned_actions[0].params.arguments.args[0]" in out
    assert f'{one}  "Kim"' in out
    assert f'{other}  "Lee"' in out

    assert workspace.agent("runs", "diff", one, other, "--json") == 1
    found = json.loads(capsys.readouterr().out)
    assert found["differences"][0]["left"] == "Kim"
    assert found["left_moment"]["kind"] == "decision_made"


def test_a_shorter_run_differs_by_the_next_entry(workspace: Workspace, model: ModelServer, capsys: Capture) -> None:
    one, other = run_twice(workspace, model, (calls("ask_user", question="Who?"),))
    capsys.readouterr()

    assert workspace.agent("runs", "diff", one, other) == 1

    assert "Runs differ " in capsys.readouterr().out


@pytest.mark.parametrize(
    ("second", "turn"),
    [
        ((calls("script_run", skill_name="greeter", script_name="greet", args=["Lee"]), says("Greeted.")), 1),
        ((calls("script_run", skill_name="greeter", script_name="greet", args=["Kim"]), says("Waved.")), 2),
    ],
)
def test_two_runs_differ_in_the_turn_in_which_they_diverge(
    *, workspace: Workspace, model: ModelServer, capsys: Capture, second: tuple[object, ...], turn: int
) -> None:
    one, other = run_twice(workspace, model, second)
    capsys.readouterr()

    assert workspace.agent("runs", "diff", one, other, "--json") == 1
    assert json.loads(capsys.readouterr().out)["turn"] == turn
