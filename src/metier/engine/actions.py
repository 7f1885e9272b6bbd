"""The possible next actions of a run. `decide` chooses one and `perform` carries it out. Pure values."""

from dataclasses import dataclass, field
from typing import Literal

from msgspec import Struct

from metier.approval.rules import Verdict
from metier.decisions import TaskState
from metier.engine.entries.limits import Limit
from metier.tools.hook_definitions import HookEvent


class LoadCatalog(Struct, frozen=True):
    """Read the front matter of every skill."""


class RankSkills(Struct, frozen=True):
    """Choose the candidates for this request."""


class Disclose(Struct, frozen=True):
    """Disclose skill content to the model: the overview of the skill in charge, and requested files."""

    skill: str
    paths: tuple[str, ...] = ()


class CallModel(Struct, frozen=True):
    turn: int
    repair: bool = False


class Decode(Struct, frozen=True):
    """Decode the recorded reply."""


# A dataclass, not a Struct: equality ignores the verdicts.
@dataclass(frozen=True, slots=True)
class RunSteps:
    """Run these steps, concurrently if there are several; results are in this order."""

    step_ids: tuple[str, ...]
    verdicts: tuple[Verdict, ...] = field(default=(), compare=False)
    """Verdicts that allow the steps, for their intents."""


class SettleDoubt(Struct, frozen=True):
    """Settle a step with an intent and no result: adopt, repeat, probe, or ask."""

    step_id: str


class RefuseStep(Struct, frozen=True):
    """Answer a call with a message instead of running it."""

    step_id: str
    reason: str
    status: Literal["denied", "skipped", "failed"] = "denied"
    code: str = ""
    """Error code of an invalid call; empty if the status says enough."""
    verdict: str = ""
    rule: str = ""


class AskApproval(Struct, frozen=True):
    step_id: str
    reason: str
    # Asked for together, so that the run pauses once for all of them.
    also: tuple[tuple[str, str], ...] = ()
    """Later steps of the same reply that need an approval too, each with the reason."""


class AskInput(Struct, frozen=True):
    step_id: str


class RetryStep(Struct, frozen=True):
    step_id: str
    reason: str


class TellFailure(Struct, frozen=True):
    """Report a step's failure to the model, with other skills that it may hand over to."""

    step_id: str
    candidates: tuple[str, ...] = ()


class PlanTask(Struct, frozen=True):
    """Take the steps from the task definition."""


class Delegate(Struct, frozen=True):
    """Delegate the step to a child run and wait for it; steps of the same call are delegated together."""

    step_id: str
    also: tuple[str, ...] = ()


class AwaitChild(Struct, frozen=True):
    """Continue to wait: not all child runs have ended."""

    step_id: str


class StopAtStep(Struct, frozen=True):
    """Wait until a user retries a failed step of a task."""

    step_id: str
    reason: str


class CheckResult(Struct, frozen=True):
    """Check the result against the request."""

    result: str


class Proceed(Struct, frozen=True):
    """Continue with the next phase after the turn's steps."""

    following: Literal["DISCLOSE_CONTEXT_STAGE", "CALL_LLM", "HANDOFF_OR_FINISH"]
    reason: str = ""


class HandOff(Struct, frozen=True):
    to_skill: str
    rationale: str
    fallback: bool = False


class Finish(Struct, frozen=True):
    result: str


class Fail(Struct, frozen=True):
    reason: str
    message: str
    status: TaskState = "failed"
    result: str = ""
    """Work done before it failed."""


class PauseAtLimit(Struct, frozen=True):
    """Wait at a limit until a user raises it."""

    limit: Limit
    reason: str


class RunHooks(Struct, frozen=True):
    """Run the user's hooks for this moment, and record their answers."""

    event: HookEvent
    step_id: str = ""


class Wait(Struct, frozen=True):
    """Do nothing: the run has ended, or waits for an answer."""


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
    | PauseAtLimit
    | RunHooks
    | Wait
)
