"""Entries of planned tasks and child runs. Pure values."""

from typing import Annotated

from msgspec import field

from metier.decisions import ActionStep, SkillCall, TaskState
from metier.definitions.task import Criterion
from metier.engine.entries.base import JournalEntry
from metier.engine.entries.limits import Limits
from metier.messages import Spent
from metier.values import JsonValue, OmitDefault, StoredValue


class ChildRequest(StoredValue, frozen=True, kw_only=True):
    """What a run is asked to do on behalf of another one, or of a task definition, and within which bounds."""

    task: str
    agent: str = ""
    model: str = ""
    task_id: str = ""
    """The task definition that plans the run; its steps are runs of their own."""
    inputs: dict[str, str] = field(default_factory=dict)
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
    reads_only: Annotated[bool, OmitDefault()] = False
    """It works beside other runs in one workspace, so it and the runs below it change nothing."""
    worktree: Annotated[bool, OmitDefault()] = False
    """It works in a git worktree of its own; what it changed is offered as a diff."""

    @property
    def checks_result(self) -> bool:
        return self.output_schema is not None or any(criterion.is_checkable for criterion in self.criteria)


class PlannedStep(StoredValue, frozen=True, kw_only=True):
    """One file of a task."""

    file: str
    name: str
    agent: str = ""


class TaskPlanned(JournalEntry, frozen=True, kw_only=True, tag="task_planned"):
    """The steps of the task definition that the run is pinned to."""

    steps: tuple[PlannedStep, ...]


class CallPlanned(JournalEntry, frozen=True, kw_only=True, tag="call_planned"):
    """The one call of a run that another skill ordered."""

    action: ActionStep


class ChildRequested(JournalEntry, frozen=True, kw_only=True, tag="delegated"):
    """The intent of a step whose effect is another run. The id follows from the step: there is never a second child."""

    step_id: str
    child_run_id: str
    order: ChildRequest
    spent: Spent | None = None


class ChildEnded(JournalEntry, frozen=True, kw_only=True, tag="child_ended"):
    """How the other run ended; what it spent counts here too."""

    step_id: str
    child_run_id: str
    status: TaskState
    turns: int = 0
    cost_usd: float = 0.0
    input_tokens: int = 0
    output_tokens: int = 0


class ResultChecked(JournalEntry, frozen=True, kw_only=True, tag="result_checked"):
    """The result was held against the order: what does not hold, and whether the model may try once more."""

    failures: tuple[str, ...] = ()
    repair: bool = False
