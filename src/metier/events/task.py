"""Events of delegated work: child runs, steps of a task, imported runs. Pure values."""

from typing import Literal

from metier.decisions import TaskState
from metier.events.payload import Payload

type TaskStepState = Literal["pending", "running", "succeeded", "failed", "skipped"]


class TaskPlanned(Payload, frozen=True, kw_only=True):
    """A task definition was loaded: its steps, in order, all of them pending."""

    event_type = "task_planned"
    task_id: str
    steps: tuple[str, ...]
    """Files of the steps."""


class TaskStepChanged(Payload, frozen=True, kw_only=True):
    """The status of a task's step changed."""

    event_type = "task_step_changed"
    step_id: str
    file: str
    name: str = ""
    state: TaskStepState
    message: str = ""
    """Reason why it failed or was skipped."""


class ChildRunStarted(Payload, frozen=True, kw_only=True):
    """The run delegated work and waits for the result."""

    event_type = "child_run_started"
    step_id: str
    child_run_id: str
    agent: str = ""
    task: str = ""
    max_turns: int = 0
    max_cost_usd: float | None = None


class ChildRunFinished(Payload, frozen=True, kw_only=True):
    """The delegated work ended; its cost counts for this run too."""

    event_type = "child_run_finished"
    step_id: str
    child_run_id: str
    status: TaskState
    turns: int = 0
    cost_usd: float | None = 0.0
    """None if a model without a known price answered."""
