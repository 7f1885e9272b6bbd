"""The result of a task after its last step: that step's result, or the forecast of all steps in a dry run. Pure."""

import json
import re
from typing import cast

from pydantic import JsonValue

from metier.engine.state.run_state import RunState

type Foreseen = dict[str, JsonValue]

_FENCED = re.compile(r"\s*```[\w-]*[ \t]*\n(.*?)\n[ \t]*```\s*", re.DOTALL)


def render_result(value: JsonValue, *, wants_json: bool) -> str:
    """Render the model's result as text: an object as JSON, and JSON without its fence."""
    if not isinstance(value, str):
        return json.dumps(value, ensure_ascii=False)
    fenced = _FENCED.fullmatch(value) if wants_json else None
    if fenced is None:
        return value
    try:
        is_structure = isinstance(json.loads(fenced[1]), dict | list)
    except (ValueError, RecursionError):
        return value
    return fenced[1].strip() if is_structure else value


def as_json(text: str) -> str:
    """Return a result as JSON for its schema: plain words are quoted if the schema wants a string."""
    try:
        json.loads(text)
    except (ValueError, RecursionError):
        return json.dumps(text, ensure_ascii=False)
    return text.strip()


def build_task_result(state: RunState) -> str:
    """Return the result of the last step that has one; for a dry run, the merged plans of the steps."""
    if state.is_dry_run:
        return json.dumps(_join_plans(state), ensure_ascii=False, indent=2)
    given = [step.finished.text for step in state.steps if step.finished and step.finished.status == "succeeded"]
    return given[-1] if given else ""


def _join_plans(state: RunState) -> Foreseen:
    order = state.started.order if state.started else None
    plans = [_parse(step.finished.text if step.finished else "") for step in state.steps]
    # A plan that is missing has no figures, so the sum is unknown; a step that was skipped costs nothing.
    predicted = [
        cast("Foreseen", plan["predicted"]) if plan is not None else {}
        for plan, step in zip(plans, state.steps, strict=True)
        if plan is not None or step.finished is None or step.finished.status != "skipped"
    ]
    return {
        "mode": "dry_run",
        "task": order.task_id if order else "",
        "inputs": dict(order.inputs) if order else {},
        "steps": [
            {"file": planned.file, "name": planned.name, "agent": planned.agent, "plan": plan}
            for planned, plan in zip(state.plan, plans, strict=True)
        ],
        "predicted": {
            "input_tokens": _add(predicted, "input_tokens_per_request"),
            "cost_usd": _add(predicted, "request_cost_usd"),
            "cost_usd_at_most": _add(predicted, "request_cost_usd_at_most"),
        },
    }


def _parse(text: str) -> Foreseen | None:
    """Parse a step's plan; None if the step was skipped, or its plan was truncated."""
    try:
        plan: JsonValue = json.loads(text)
    except ValueError:
        return None
    return plan if isinstance(plan, dict) and isinstance(plan.get("predicted"), dict) else None


def _add(predicted: list[Foreseen], key: str) -> float | None:
    """Add up one request per step; None if a figure is unknown."""
    figures = [each.get(key) for each in predicted]
    known = [figure for figure in figures if isinstance(figure, int | float)]
    return round(sum(known), 6) if known and len(known) == len(figures) else None
