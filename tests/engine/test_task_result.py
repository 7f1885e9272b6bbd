"""The final message of a task's dry run."""

import json

import pytest
from journals import folded, started
from msgspec.structs import replace

from metier.engine.delegation import build_task_result
from metier.engine.entries.step import StepFinished
from metier.engine.entries.task import ChildRequest, PlannedStep, TaskPlanned
from metier.telemetry.excerpt import cut_middle

FIGURES = {"input_tokens_per_request": 10, "request_cost_usd": 0.5, "request_cost_usd_at_most": 2.0}
PLAN = json.dumps({"predicted": FIGURES})
KNOWN = {"input_tokens": 20, "cost_usd": 1.0, "cost_usd_at_most": 4.0}
ONE = {"input_tokens": 10, "cost_usd": 0.5, "cost_usd_at_most": 2.0}
UNKNOWN = dict.fromkeys(KNOWN)


def planned(step_id: str, text: str) -> StepFinished:
    return StepFinished(step_id=step_id, status="succeeded", text=text)


SKIPPED = StepFinished(step_id="1.2", status="skipped", text="Skipped by a person", is_error=True)


@pytest.mark.parametrize(
    ("second", "predicted"),
    [
        (planned("1.2", PLAN), KNOWN),
        (planned("1.2", cut_middle(PLAN, 60)), UNKNOWN),
        (SKIPPED, ONE),
    ],
    ids=["whole", "cut", "skipped"],
)
def test_total_of_a_dry_run_is_unknown_if_a_plan_was_too_long_to_store(
    second: StepFinished, predicted: dict[str, float | None]
) -> None:
    began = replace(started(), mode="dry_run", order=ChildRequest(task="two", task_id="two"))
    steps = tuple(PlannedStep(file=f"{name}.md", name=name, agent="") for name in ("one", "two"))
    state = folded(began, TaskPlanned(steps=steps), planned("1.1", PLAN), second)

    assert json.loads(build_task_result(state))["predicted"] == predicted
