"""What a run can do next: a small union that `decide` chooses from and `perform` carries out. Pure values."""

from dataclasses import dataclass, field
from typing import Literal

from msgspec import Struct

from metier.approval.rules import Verdict
from metier.decisions import TaskState
from metier.engine.entries.limits import Limit
from metier.tools.hooks.definition import HookEvent


class LoadCatalog(Struct, frozen=True):
    """Read the front matter of every skill."""


class RankSkills(Struct, frozen=True):
    """Choose the candidates for this request."""


class Disclose(Struct, frozen=True):
    """Put skill content in front of the model: the overview of the skill in charge, and what was asked for."""

    skill: str
    paths: tuple[str, ...] = ()


class CallModel(Struct, frozen=True):
    turn: int
    repair: bool = False


class Decode(Struct, frozen=True):
    """Find out what the recorded reply means."""


@dataclass(frozen=True, slots=True)
class RunSteps:
    """Run these steps, at the same time where there is more than one; results in this order."""

    step_ids: tuple[str, ...]
    verdicts: tuple[Verdict, ...] = field(default=(), compare=False)
    """By which each of them may run, for its intent."""


class SettleDoubt(Struct, frozen=True):
    """A step has an intent and no result: adopt, repeat, probe, or ask."""

    step_id: str


class RefuseStep(Struct, frozen=True):
    """Answer a call with a sentence instead of running it."""

    step_id: str
    reason: str
    status: Literal["denied", "skipped", "failed"] = "denied"
    code: str = ""
    """What is wrong with a call that could not run; else the status says enough."""
    verdict: str = ""
    rule: str = ""


class AskApproval(Struct, frozen=True):
    step_id: str
    reason: str
    also: tuple[tuple[str, str], ...] = ()
    """Later steps of the same reply that are asked about together with it, each with the reason."""


class AskInput(Struct, frozen=True):
    step_id: str


class RetryStep(Struct, frozen=True):
    step_id: str
    reason: str


class TellFailure(Struct, frozen=True):
    """Let the model read why a step failed, with the other skills that it may hand over to."""

    step_id: str
    candidates: tuple[str, ...] = ()


class PlanTask(Struct, frozen=True):
    """Take the steps from the task definition."""


class Delegate(Struct, frozen=True):
    """Hand the step on to a run of its own, and wait for it; those of the same call are handed on with it."""

    step_id: str
    also: tuple[str, ...] = ()


class AwaitChild(Struct, frozen=True):
    """The other runs have not all ended: continue waiting."""

    step_id: str


class StopAtStep(Struct, frozen=True):
    """A step of a task failed: wait until a user asks to try it again."""

    step_id: str
    reason: str


class CheckResult(Struct, frozen=True):
    """Hold the result against what was asked of it."""

    result: str


class Proceed(Struct, frozen=True):
    """The turn's steps are through: where to go from here."""

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
    """What was done before it failed."""


class Park(Struct, frozen=True):
    """Wait at a limit until a user raises it."""

    limit: Limit
    reason: str


class RunHooks(Struct, frozen=True):
    """Run the user's commands for this moment, and record what they said."""

    event: HookEvent
    step_id: str = ""


class Wait(Struct, frozen=True):
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
