"""The outcome of a run without a model follows its skills: only finished work counts as completed."""

import json

import pytest
from run_workspace import Workspace
from test_run_capabilities import add_capability

type Capture = pytest.CaptureFixture[str]

GIVES_UP = (
    'def execute(context):\n    return {"state": "escalated", "errors": [{"code": "too_hard", "message": "no"}]}\n'
)
ASKS = 'def execute(context):\n    return {"state": "paused"}\n'
NAPS = "import time\n\n\ndef execute(context):\n    time.sleep(60)\n"
READING = "autonomy_level: read\nside_effects: none\n"
SCRIPTED = """---
name: {name}
description: {description}
entrypoint:
  script: work
  args: []
---

# {name}
"""


def add_scripted(workspace: Workspace, name: str, description: str, code: str) -> None:
    folder = workspace.add_skill(name, description, work=code)
    (folder / "SKILL.md").write_text(SCRIPTED.format(name=name, description=description), encoding="utf-8")


def outcome(workspace: Workspace, capsys: Capture, *args: str) -> dict[str, object]:
    """The output of `--output-format json` and the real exit code."""
    capsys.readouterr()
    code = workspace.agent("run", "--provider", "offline", "--output-format", "json", *args)
    told = json.loads(capsys.readouterr().out)
    assert told["exit_code"] == code
    return told


@pytest.mark.parametrize(
    ("impl", "contract", "status", "reason"),
    [
        (GIVES_UP, READING, "escalated", "skill_escalated"),
        (ASKS, READING, "blocked", "skill_blocked"),
        (NAPS, f"{READING}timeout_seconds: 1\n", "timeout", "skill_timeout"),
    ],
)
def test_the_outcome_of_the_skill_is_the_outcome_of_the_run(
    *, impl: str, contract: str, status: str, reason: str, workspace: Workspace, capsys: Capture
) -> None:
    add_capability(workspace, "counter", contract, impl)

    told = outcome(workspace, capsys, "use the skill counter")

    assert (told["status"], told["reason"]) == (status, reason)
    assert told["exit_code"] != 0
    assert "counter" in str(told["message"])


def test_a_request_without_a_matching_skill_fails_with_a_hint(workspace: Workspace, capsys: Capture) -> None:
    code = workspace.agent("run", "--provider", "offline", "translate the poem into Finnish")

    told = capsys.readouterr()
    assert code == 1
    assert workspace.events()[-1]["event_type"] == "run_failed"
    assert (workspace.events()[-1]["payload"]["status"], workspace.events()[-1]["payload"]["reason"]) == (
        "failed",
        "no_skill",
    )
    assert "next:    " in told.err
    assert "agent skills route" in told.err


def test_results_of_other_parts_are_returned_if_one_part_failed(workspace: Workspace, capsys: Capture) -> None:
    add_scripted(workspace, "stock-taker", "Take stock of the shelves.", 'print(\'{"summary": "three shelves"}\')\n')

    told = outcome(workspace, capsys, "take stock of the shelves, then translate the poem into Finnish")

    assert (told["status"], told["reason"], told["exit_code"]) == ("failed", "no_skill", 1)
    assert "three shelves" in str(told["result"])


def test_a_failed_script_hands_over_only_to_the_next_matching_skill(workspace: Workspace, capsys: Capture) -> None:
    add_scripted(workspace, "stock-taker", "Take stock of the shelves.", "import sys\nsys.exit(3)\n")
    add_scripted(workspace, "poet", "Write a poem about the sea.", 'print(\'{"summary": "waves"}\')\n')

    told = outcome(workspace, capsys, "take stock of the shelves")

    assert (told["status"], told["reason"]) == ("failed", "step_failed")
    assert "handoff" not in workspace.event_types()[-6:]

    add_scripted(
        workspace, "shelf-counter", "Take stock of the shelves by counting.", 'print(\'{"summary": "four shelves"}\')\n'
    )
    assert workspace.agent("run", "--provider", "offline", "take stock of the shelves with /stock-taker") == 0
    assert "four shelves" in capsys.readouterr().out


def test_a_model_for_the_offline_provider_is_reported_as_unused(workspace: Workspace, capsys: Capture) -> None:
    workspace.agent("run", "--provider", "offline", "--model", "unknown/m2", "Greet", "-q")

    assert "warning: --model 'unknown/m2' is not used: the provider is 'offline'" in capsys.readouterr().err
