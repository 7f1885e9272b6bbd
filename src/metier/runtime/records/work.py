"""The steps of a task and the runs that work was handed to, in words and as JSON."""

from pydantic import JsonValue

from metier.engine.projection_work import list_task_steps
from metier.engine.state import RunState


def work_as_json(state: RunState) -> dict[str, JsonValue]:
    """Nothing for a run that has neither."""
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
                # How an open one stands, its own journal knows.
                "status": child.status if child.status != "pending" else "open",
            }
            for child in state.children
        ]
    return told


def describe_work(state: RunState) -> list[str]:
    order = state.started.order if state.started else None
    lines = [f"input:   {name} = {value}" for name, value in order.inputs.items()] if order else []
    if order is not None and order.call is not None:
        lines.append(f"skill:   {order.call.skill}, called for {' → '.join(order.call.chain)}")
    lines += [f"step:    {step.file}  {step.state}  {step.name}".rstrip() for step in list_task_steps(state)]
    for child in state.children:
        status = child.status if child.status != "pending" else "open"
        who = f"skill {child.skill}" if child.skill else child.agent or "built-in"
        lines.append(f"child:   {child.run_id}  {status}  {who}")
    return lines
