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
    """A request for a child run, by another run or a task definition, with its bounds."""

    task: str
    agent: str = ""
    model: str = ""
    task_id: str = ""
    """Task definition that plans the run; its steps are runs of their own."""
    inputs: dict[str, str] = field(default_factory=dict)
    """All inputs of that definition, with defaults."""
    step_of: str = ""
    """Task definition that this run is a step of."""
    step_file: str = ""
    brief: str = ""
    """Body of the whole task, if `task` is a later step of it."""
    criteria: tuple[Criterion, ...] = ()
    output_schema: dict[str, JsonValue] | None = None
    limits: Limits = Limits()
    lineage: tuple[str, ...] = ()
    """Ancestors from the first one down: `agent:ID` or `task:ID`."""
    under_skill: str = ""
    """Skill in charge of the parent: its rules bind this run too."""
    call: SkillCall | None = None
    """The skill whose code is the run's only call: no model is asked."""
    reads_only: Annotated[bool, OmitDefault()] = False
    """True if it shares the workspace with other runs, so that it and its descendants change nothing."""
    worktree: Annotated[bool, OmitDefault()] = False
    """True if it works in its own git worktree; its changes are offered as a diff."""

    @property
    def checks_result(self) -> bool:
        return self.output_schema is not None or any(criterion.is_checkable for criterion in self.criteria)


class PlannedStep(StoredValue, frozen=True, kw_only=True):
    """One file of a task."""

    file: str
    name: str
    agent: str = ""


class TaskPlanned(JournalEntry, frozen=True, kw_only=True, tag="task_planned"):
    """The steps of the pinned task definition."""

    steps: tuple[PlannedStep, ...]


class CallPlanned(JournalEntry, frozen=True, kw_only=True, tag="call_planned"):
    """The one call of a run that another skill requested."""

    action: ActionStep


# The kind and the field `order` keep the names of 0.1, because journals contain them.
class ChildRequested(JournalEntry, frozen=True, kw_only=True, tag="delegated"):
    """The intent of a step whose effect is another run. The ID derives from the step: there is never a second child."""

    step_id: str
    child_run_id: str
    order: ChildRequest
    spent: Spent | None = None


class ChildEnded(JournalEntry, frozen=True, kw_only=True, tag="child_ended"):
    """The end of a child run; its cost counts for the parent too."""

    step_id: str
    child_run_id: str
    status: TaskState
    turns: int = 0
    cost_usd: float = 0.0
    input_tokens: int = 0
    output_tokens: int = 0


class ResultChecked(JournalEntry, frozen=True, kw_only=True, tag="result_checked"):
    """The result was checked against the request: problems, and whether the model may try once more."""

    failures: tuple[str, ...] = ()
    repair: bool = False
