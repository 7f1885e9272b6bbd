"""Results with a schema, in the forms that models produce."""

import json

import pytest
from model_server import ModelServer, Reply, calls, says
from run_workspace import Workspace

TASK = """---
name: Count
output_schema:
  type: object
  properties:
    notes:
      type: integer
  required: [notes]
---
Count the notes.
"""


@pytest.mark.parametrize(
    "reply",
    [
        says('{"notes": 3}'),
        says('```json\n{"notes": 3}\n```'),
        calls("finish", result='```\n{"notes": 3}\n```\n'),
        calls("finish", result={"notes": 3}),
    ],
    ids=["plain", "fenced", "fenced in finish", "object in finish"],
)
def test_valid_json_is_accepted_in_any_form(
    workspace: Workspace, model: ModelServer, reply: Reply, capsys: pytest.CaptureFixture[str]
) -> None:
    workspace.write(".agent/tasks/count/TASK.md", TASK)
    model.follow(reply)

    assert workspace.agent("task", "run", "count", "-q") == 0

    assert len(model.received) == 1
    assert json.loads(capsys.readouterr().out) == {"notes": 3}


def test_object_given_to_finish_without_a_schema_is_printed_as_json(
    workspace: Workspace, model: ModelServer, capsys: pytest.CaptureFixture[str]
) -> None:
    model.follow(calls("finish", result={"who": "Ada"}))

    assert workspace.agent("run", "-q", "Who?") == 0

    assert capsys.readouterr().out == '{"who": "Ada"}\n'
