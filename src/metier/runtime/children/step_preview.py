"""The order that a step of a task would get, shown to the user before the task is run.

Inputs without a value and without a default stand as they are written; results of earlier steps are not known yet.
"""

from metier.definitions.nearest import hint_nearest
from metier.engine import entries as e
from metier.engine.delegation.orders import order_step
from metier.engine.delegation.partners import read_inputs
from metier.engine.state import RunState, apply
from metier.errors import UsageError
from metier.runtime.children.child_runs import ChildRunStart, build_limits
from metier.runtime.host import Host
from metier.runtime.workspace.tasks import get_task

_PREVIEW = "preview"


def commission_step(place: Host, task_id: str, *, file: str = "", agent: str = "") -> ChildRunStart:
    """`TASK.md` where no file is named. Raises `UsageError` for a task or step that is not there, `ConfigError`."""
    task = get_task(place, task_id)
    names = [step.file.name for step in task.steps]
    wanted = file or names[0]
    number = next((i for i, name in enumerate(names) if wanted in (name, name.removesuffix(".md"))), None)
    if number is None:
        hint = hint_nearest(wanted, names) or f"There are: {', '.join(names)}"
        raise UsageError(f"Task {task.id!r} has no step {wanted!r}", hint=hint)
    inputs = {
        item.name: f"{{{{inputs.{item.name}}}}}" if item.default is None else item.default for item in read_inputs(task)
    }
    limits = build_limits(place.settings.runtime)
    above = RunState(_PREVIEW)
    started = e.RunStarted(
        task=task.name,
        mode="dry_run",
        provider="",
        model="",
        context_id=_PREVIEW,
        trace_id=_PREVIEW,
        workspace=str(place.workspace),
        limits=limits,
        order=e.ChildRequest(task=task.name, task_id=task.id, inputs=inputs, limits=limits),
    )
    apply(above, started)
    default = agent or place.settings.runtime.agent or ""
    planned = (
        e.PlannedStep(file=step.file.name, name=step.name, agent=step.agent or task.agent or default)
        for step in task.steps
    )
    apply(above, e.TaskPlanned(steps=tuple(planned)))
    return ChildRunStart(order=order_step(above, above.steps[number], task), mode="dry_run")
