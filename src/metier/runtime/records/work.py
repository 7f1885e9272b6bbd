"""The steps of a task and the runs that work was handed to, in words and as JSON."""

from collections.abc import Mapping

from pydantic import JsonValue

from metier.engine.projection_work import list_task_steps
from metier.engine.state import RunState
from metier.engine.state_parts.child import Child


def work_as_json(state: RunState, standing: Mapping[str, str]) -> dict[str, JsonValue]:
    """Nothing for a run that has neither. `standing`: how the runs stand that have not ended here, by the index."""
    told: dict[str, JsonValue] = {}
    if state.plan:
        told["task_steps"] = [step.model_dump(mode="json") for step in list_task_steps(state)]
    if state.children:
        told["children"] = [
            {
                "run_id": child.run_id,
                "step_id": child.step_id,
                "agent": child.agent,
                "task": child.task,
                "skill": child.skill,
                "status": _find_status(child, standing),
            }
            for child in state.children
        ]
    return told


def describe_work(state: RunState, standing: Mapping[str, str]) -> list[str]:
    order = state.started.order if state.started else None
    lines = [f"input:   {name} = {value}" for name, value in order.inputs.items()] if order else []
    if order is not None and order.call is not None:
        lines.append(f"skill:   {order.call.skill}, called for {' → '.join(order.call.chain)}")
    lines += [f"step:    {step.file}  {step.state}  {step.name}".rstrip() for step in list_task_steps(state)]
    for child in state.children:
        status = _find_status(child, standing)
        who = f"skill {child.skill}" if child.skill else child.agent or "built-in"
        lines.append(f"child:   {child.run_id}  {status}  {who}")
    return lines


def _find_status(child: Child, standing: Mapping[str, str]) -> str:
    """The end of a child is in the journal of its parent when all that began with it have ended."""
    return child.status if child.status != "pending" else standing.get(child.run_id, "open")
