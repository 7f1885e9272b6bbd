"""What the event log says of work handed on: child runs, steps of a task, runs from elsewhere. Pure values."""

from typing import Literal

from pydantic import Field

from metier.events import Payload
from metier.task_state import TaskState

type TaskStepState = Literal["pending", "running", "succeeded", "failed", "skipped"]


class TaskPlanned(Payload):
    """A task definition was read: these are its steps, in order, all of them pending."""

    event_type = "task_planned"
    task_id: str
    steps: tuple[str, ...]
    """The file of each step."""


class TaskStepChanged(Payload):
    """A step of a task is in another state."""

    event_type = "task_step_changed"
    step_id: str
    file: str
    name: str = ""
    state: TaskStepState
    message: str = ""
    """Why it failed or was skipped."""


class ChildRunStarted(Payload):
    """The run handed work on and waits for the result."""

    event_type = "child_run_started"
    step_id: str
    child_run_id: str
    agent: str = ""
    task: str = ""
    max_turns: int = 0
    max_cost_usd: float | None = None


class ChildRunFinished(Payload):
    """The work that was handed on came to an end; what it cost counts for this run too."""

    event_type = "child_run_finished"
    step_id: str
    child_run_id: str
    status: TaskState
    turns: int = 0
    cost_usd: float | None = 0
    """None where a model without a known price answered."""


class ResultChecked(Payload):
    """A result was held against what was asked of it; what does not hold is told to the model once."""

    event_type = "result_checked"
    accepted: bool
    failures: tuple[str, ...] = ()


class StepOutcomeUnknown(Payload):
    """The process ended while a step ran, and nothing shows how the step ended: a user is asked."""

    event_type = "step_outcome_unknown"
    step_id: str
    known: str
    """The call, and why its outcome is unknown."""


class StepOutcomeAnswered(Payload):
    """A user answered for a step whose outcome is unknown, or for the failed step of a task."""

    event_type = "step_outcome_answered"
    step_id: str
    answer: Literal["done", "retry", "skip", "abort"]
    answered_by: str = ""


class RunAdopted(Payload):
    """A run that was not started in this store continues here: with this host's settings, rules, provider and keys.

    Steps that were planned and not finished are asked about.
    """

    event_type = "run_adopted"
    provider: str
    model: str
    profile: str


class ModelChanged(Payload):
    """A run that its provider ended continues with another provider, model, address or window."""

    event_type = "model_changed"
    provider: str
    model: str
    settings: tuple[str, ...] = ()
    """Names of the settings whose values differ from before."""
    changed_by: str = ""


class SkillCodeAccepted(Payload):
    """The files of skills changed since the run began, and it continues with the new ones."""

    event_type = "skill_code_accepted"
    skills: tuple[str, ...] = ()
    code: dict[str, str] = Field(default_factory=dict)
    """Pin → hash of the tree that is used from now on."""
    accepted_by: str = ""


class SkillWithoutTools(Payload):
    """While this skill is in charge the run has no tool: its list and that of the agent have none in common."""

    event_type = "skill_without_tools"
    skill_name: str
    message: str
