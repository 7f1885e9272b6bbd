"""Answers to a skill are validated against its `input_request_schema` before the skill is called."""

from pathlib import Path

import pytest
from run_workspace import Workspace

type Capture = pytest.CaptureFixture[str]

CONTRACT = """name: sorter
description: Sort the things of a list.
state_persistence: facts_only
autonomy_level: implement
side_effects: {kinds: [writes_files], repeat: idempotent}
interaction_outcomes:
  allowed_intermediate_states: [input_required]
  input_request_schema:
    - {name: order, type: string, enum: [up, down], description: Which way}
    - {name: limit, type: integer, required: false}
"""
ASKS = """
def execute(context):
    with open(context.workspace / "turns", "a") as stream:
        stream.write("x")
    if "order" not in context.inputs:
        fields = [{"name": "order", "enum": ["up", "down"]}, {"name": "limit", "type": "integer", "required": False}]
        return {"state": "input_required", "input_request": {"missing_fields": fields}}
    return {"outputs": {"summary": "sorted " + str(context.inputs["order"]) + " " + str(context.inputs.get("limit"))}}
"""


@pytest.fixture
def sorter(workspace: Workspace) -> Workspace:
    workspace.write("skills/sorter/SKILL.md", f"---\n{CONTRACT}---\n\n# Sorter\n")
    workspace.write("skills/sorter/impl.py", ASKS)
    return workspace


def count_turns(workspace: Workspace) -> int:
    file: Path = workspace.folder / "turns"
    return len(file.read_text(encoding="utf-8")) if file.exists() else 0


def test_an_answer_of_the_wrong_type_or_value_is_asked_for_again_without_a_turn(
    sorter: Workspace, capsys: Capture
) -> None:
    assert sorter.agent("run", "--provider", "offline", "use the skill sorter") == 4
    capsys.readouterr()

    assert sorter.agent("resume", "latest", "--input", "order=sideways") == 4
    assert "'sideways' is not one of ['up', 'down']" in capsys.readouterr().err
    assert sorter.agent("resume", "latest", "--input", "order=up", "--input", "limit=many") == 4
    assert "'many' is not of type 'integer'" in capsys.readouterr().err
    assert count_turns(sorter) == 1

    assert sorter.agent("resume", "latest", "--input", "limit=3") == 0
    assert capsys.readouterr().out == "sorter: sorted up 3\n"
    assert count_turns(sorter) == 2


def test_an_answer_without_a_required_field_of_the_open_request_is_asked_for_again(
    sorter: Workspace, capsys: Capture
) -> None:
    assert sorter.agent("run", "--provider", "offline", "use the skill sorter") == 4
    capsys.readouterr()

    assert sorter.agent("resume", "latest", "--input", "limit=3") == 4

    assert "order (Which way)" in capsys.readouterr().err
    assert count_turns(sorter) == 1


def test_fields_required_in_an_answer_are_optional_in_the_first_call(sorter: Workspace, capsys: Capture) -> None:
    sorter.write("skills/sorter/impl.py", 'def execute(context):\n    return {"outputs": {"summary": "sorted"}}\n')

    assert sorter.agent("run", "--provider", "offline", "use the skill sorter") == 0

    assert capsys.readouterr().out == "sorter: sorted\n"
