"""What a run can do next: a small union that `decide` chooses from and `perform` carries out. Pure values."""

from dataclasses import field
from typing import Literal

from metier.approval.verdict import Verdict
from metier.dataclass import dataclass
from metier.engine.entry_types.limits import Limit
from metier.task_state import TaskState
from metier.tools.hooks.definition import HookEvent


@dataclass(frozen=True, slots=True)
class LoadCatalog:
    """Read the front matter of every skill."""


@dataclass(frozen=True, slots=True)
class RankSkills:
    """Choose the candidates for this request."""


@dataclass(frozen=True, slots=True)
class Disclose:
    """Put skill content in front of the model: the overview of the skill in charge, and what was asked for."""

    skill: str
    paths: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class CallModel:
    turn: int
    repair: bool = False


@dataclass(frozen=True, slots=True)
class Decode:
    """Find out what the recorded reply means."""


@dataclass(frozen=True, slots=True)
class RunSteps:
    """Run these steps, at the same time where there is more than one; results in this order."""

    step_ids: tuple[str, ...]
    verdicts: tuple[Verdict, ...] = field(default=(), compare=False)
    """By which each of them may run, for its intent."""


@dataclass(frozen=True, slots=True)
class SettleDoubt:
    """A step has an intent and no result: adopt, repeat, probe, or ask."""

    step_id: str


@dataclass(frozen=True, slots=True)
class RefuseStep:
    """Answer a call with a sentence instead of running it."""

    step_id: str
    reason: str
    status: Literal["denied", "skipped", "failed"] = "denied"
    code: str = ""
    """What is wrong with a call that could not run; else the status says enough."""
    verdict: str = ""
    rule: str = ""


@dataclass(frozen=True, slots=True)
class AskApproval:
    step_id: str
    reason: str
    also: tuple[tuple[str, str], ...] = ()
    """Later steps of the same reply that are asked about together with it, each with the reason."""


@dataclass(frozen=True, slots=True)
class AskInput:
    step_id: str


@dataclass(frozen=True, slots=True)
class RetryStep:
    step_id: str
    reason: str


@dataclass(frozen=True, slots=True)
class TellFailure:
    """Let the model read why a step failed, with the other skills that it may hand over to."""

    step_id: str
    candidates: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class PlanTask:
    """Take the steps from the task definition."""


@dataclass(frozen=True, slots=True)
class Delegate:
    """Hand the step on to a run of its own, and wait for it; those of the same call are handed on with it."""

    step_id: str
    also: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class AwaitChild:
    """The other runs have not all ended: go on waiting."""

    step_id: str


@dataclass(frozen=True, slots=True)
class StopAtStep:
    """A step of a task failed: wait until a person asks to try it again."""

    step_id: str
    reason: str


@dataclass(frozen=True, slots=True)
class CheckResult:
    """Hold the result against what was asked of it."""

    result: str


@dataclass(frozen=True, slots=True)
class Proceed:
    """The turn's steps are through: where to go from here."""

    following: Literal["DISCLOSE_CONTEXT_STAGE", "CALL_LLM", "HANDOFF_OR_FINISH"]
    reason: str = ""


@dataclass(frozen=True, slots=True)
class HandOff:
    to_skill: str
    rationale: str
    fallback: bool = False


@dataclass(frozen=True, slots=True)
class Finish:
    result: str


@dataclass(frozen=True, slots=True)
class Fail:
    reason: str
    message: str
    status: TaskState = "failed"
    result: str = ""
    """What was done before it failed."""


@dataclass(frozen=True, slots=True)
class Park:
    """Wait at a limit until a person raises it."""

    limit: Limit
    reason: str


@dataclass(frozen=True, slots=True)
class RunHooks:
    """Run the user's commands for this moment, and record what they said."""

    event: HookEvent
    step_id: str = ""


@dataclass(frozen=True, slots=True)
class Wait:
    """Nothing to do until an answer comes; nothing at all in a run that has ended."""


type Action = (
    LoadCatalog
    | RankSkills
    | Disclose
    | CallModel
    | Decode
    | RunSteps
    | SettleDoubt
    | RefuseStep
    | AskApproval
    | AskInput
    | RetryStep
    | TellFailure
    | PlanTask
    | Delegate
    | AwaitChild
    | StopAtStep
    | CheckResult
    | Proceed
    | HandOff
    | Finish
    | Fail
    | Park
    | RunHooks
    | Wait
)
