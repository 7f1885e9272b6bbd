"""Entries of planned tasks and child runs. Pure values."""

from typing import Literal

from pydantic import Field, JsonValue

from metier.decisions import ActionStep, SkillCall, TaskState
from metier.definitions.task import Criterion
from metier.engine.entries.limits import Limits
from metier.messages import Spent, Value


class ChildRequest(Value):
    """What a run is asked to do on behalf of another one, or of a task definition, and within which bounds."""

    task: str
    agent: str = ""
    model: str = ""
    task_id: str = ""
    """The task definition that plans the run; its steps are runs of their own."""
    inputs: dict[str, str] = Field(default_factory=dict)
    """Of that definition, all of them, defaults filled in."""
    step_of: str = ""
    """The task definition that this run is a step of."""
    step_file: str = ""
    brief: str = ""
    """The body of the whole task, where `task` is a later step of it."""
    criteria: tuple[Criterion, ...] = ()
    output_schema: dict[str, JsonValue] | None = None
    limits: Limits = Limits()
    lineage: tuple[str, ...] = ()
    """Who is above, the first one first: `agent:ID` or `task:ID`."""
    under_skill: str = ""
    """The skill that was in charge of the run above: its rules bind this one too."""
    call: SkillCall | None = None
    """The skill whose code is all that the run calls: no model is asked what to do."""
    reads_only: bool = Field(default=False, exclude_if=lambda reads: not reads)
    """It works beside other runs in one workspace, so it and the runs below it change nothing."""
    worktree: bool = Field(default=False, exclude_if=lambda has_one: not has_one)
    """It works in a git worktree of its own; what it changed is offered as a diff."""

    @property
    def checks_result(self) -> bool:
        return self.output_schema is not None or any(criterion.is_checkable for criterion in self.criteria)


class PlannedStep(Value):
    """One file of a task."""

    file: str
    name: str
    agent: str = ""


class TaskPlanned(Value):
    """The steps of the task definition that the run is pinned to."""

    kind: Literal["task_planned"] = "task_planned"
    steps: tuple[PlannedStep, ...]


class CallPlanned(Value):
    """The one call of a run that another skill ordered."""

    kind: Literal["call_planned"] = "call_planned"
    action: ActionStep


class ChildRequested(Value):
    """The intent of a step whose effect is another run. The id follows from the step: there is never a second child."""

    kind: Literal["delegated"] = "delegated"
    step_id: str
    child_run_id: str
    order: ChildRequest
    spent: Spent | None = None


class ChildEnded(Value):
    """How the other run ended; what it spent counts here too."""

    kind: Literal["child_ended"] = "child_ended"
    step_id: str
    child_run_id: str
    status: TaskState
    turns: int = 0
    cost_usd: float = 0.0
    input_tokens: int = 0
    output_tokens: int = 0


class ResultChecked(Value):
    """The result was held against the order: what does not hold, and whether the model may try once more."""

    kind: Literal["result_checked"] = "result_checked"
    failures: tuple[str, ...] = ()
    repair: bool = False
