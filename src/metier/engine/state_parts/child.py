"""A run that another one handed work to, as that one knows it. Pure."""

from dataclasses import dataclass
from typing import Self

from metier.decisions import TaskState
from metier.engine.entries.task import ChildEnded, ChildRequested


@dataclass(slots=True, kw_only=True)
class Child:
    run_id: str
    step_id: str
    agent: str
    task: str
    skill: str = ""
    """Whose code is all that it calls; empty where an agent or a task does the work."""
    status: TaskState = "pending"
    """`pending` until it ended: how it stands meanwhile, its own journal knows."""
    ended: ChildEnded | None = None
    """How it ended last."""

    @classmethod
    def of(cls, entry: ChildRequested) -> Self:
        order = entry.order
        return cls(
            run_id=entry.child_run_id,
            step_id=entry.step_id,
            agent=order.agent,
            task=order.task_id or order.task,
            skill=order.call.skill if order.call is not None else "",
        )
