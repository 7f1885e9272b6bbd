"""Events of steps: calls, approvals, questions, plans, hooks and undone changes."""

from typing import Literal

from metier.decisions import StepStatus
from metier.events.payload import Payload
from metier.values import AwareDatetime, JsonValue, OwnText, StoredValue


class PlanStep(StoredValue, frozen=True, kw_only=True):
    """One line of a plan."""

    step: str
    status: Literal["pending", "in_progress", "done", "dropped"]


class PlanUpdated(Payload, frozen=True, kw_only=True):
    """The model wrote down its steps, or how far they are: always the whole list."""

    event_type = "plan_updated"
    step_id: str
    steps: tuple[PlanStep, ...]
    summary: str = ""


class StepStarted(Payload, frozen=True, kw_only=True):
    """An action is about to have its effect; the intent is on disk. `skill_name` owns what runs, else is in charge."""

    event_type = "step_started"
    step_id: str
    action: str
    tool: str = ""
    arguments: JsonValue = None
    effect: str = ""
    idempotency_key: OwnText = ""
    verdict: str = ""
    """What the policy said; `ask` where a user then approved it."""
    rule: str = ""
    read_only: bool = False
    """Its program runs in the read-only sandbox, so no user was asked."""
    skill_name: str = ""


class CallRefused(Payload, frozen=True, kw_only=True):
    """A call was not run: a rule, a user, its schema, or what is open to it stood in the way."""

    event_type = "call_refused"
    step_id: str
    action: str
    tool: str = ""
    arguments: JsonValue = None
    status: StepStatus = "denied"
    error_type: str = ""
    verdict: str = ""
    """What the policy said: `deny`, `ask` where a user then said no, `allow` where something else was in the way."""
    rule: str = ""
    reason: str = ""
    skill_name: str = ""


class SkillStepExecuted(Payload, frozen=True, kw_only=True):
    """A step ended: how, how long, and the beginning and end of what it printed."""

    event_type = "skill_step_executed"
    step_id: str
    action: str
    status: StepStatus
    tool: str = ""
    skill_name: str = ""
    script: str = ""
    exit_code: int | None = None
    stdout_summary: str = ""
    stderr_summary: str = ""
    stdout_bytes: int = 0
    stderr_bytes: int = 0
    duration_ms: float = 0
    retry_count: int = 0
    error_type: str = ""
    truncated: bool = False
    excerpt: str = ""
    """The first lines of what came back; of a step that failed the last ones."""
    output_lines: int = 0
    """How many lines came back in all; 0 in logs of versions that did not count them."""
    diff: str | None = None
    """The first lines of the change that `Write` or `Edit` made; empty if it changed nothing, None if not known."""
    diff_lines: int = 0


class StepRetryScheduled(Payload, frozen=True, kw_only=True):
    """A step failed in a way that may pass and is tried once more."""

    event_type = "step_retry_scheduled"
    step_id: str
    retry_count: int
    reason: str
    delay_seconds: float = 0


class ArtifactWritten(Payload, frozen=True, kw_only=True):
    """A file that belongs to the run was written."""

    event_type = "artifact_written"
    path: str
    sha256: str
    bytes: int
    media_type: str = ""
    step_id: str = ""


class ApprovalRequested(Payload, frozen=True, kw_only=True):
    """A user must decide before this call runs."""

    event_type = "approval_requested"
    approval_id: str
    tool: str
    arguments_hash: str
    arguments: JsonValue = None
    step_id: str = ""
    justification: str = ""
    rule: str = ""
    expires_at: AwareDatetime | None = None


class ApprovalDecided(Payload, frozen=True, kw_only=True):
    """An approval was decided, or expired."""

    event_type = "approval_decided"
    approval_id: str
    decision: Literal["approved", "denied", "expired"]
    decided_by: str = ""
    reason: str = ""
    edited: bool = False


class InputRequested(Payload, frozen=True, kw_only=True):
    """The run waits for an answer."""

    event_type = "input_requested"
    request_id: str
    question: str
    fields: JsonValue = None


class InputReceived(Payload, frozen=True, kw_only=True):
    """The answer came."""

    event_type = "input_received"
    request_id: str
    answered_by: str = ""
    fields: tuple[str, ...] = ()


class HooksRan(Payload, frozen=True, kw_only=True):
    """The user's commands for one moment of the run ended, and this is what they said together."""

    event_type = "hooks_ran"
    hook_event: str
    """The moment: `PreToolUse`, `Stop` and so on."""
    step_id: str = ""
    commands: tuple[str, ...] = ()
    """What ran, in order."""
    failures: tuple[str, ...] = ()
    """Commands that hung, crashed or printed too much, each with the reason."""
    messages: tuple[str, ...] = ()
    """What they say to the user."""
    decision: str = ""
    """`deny`, `ask`, `stop`, or nothing."""
    reason: str = ""
    changed_call: bool = False
    """The call has other arguments now."""
    added_text: bool = False
    """The model is told something."""

    @property
    def summary(self) -> str:
        said = [f"{self.decision}: {self.reason}" if self.decision else "", *self.messages]
        effect = "changed the call" if self.changed_call else ""
        return "; ".join(text for text in (*said, effect, *self.failures) if text)


class UndoStarted(Payload, frozen=True, kw_only=True):
    """Files are about to become what they were before a step."""

    event_type = "undo_started"
    undo_id: str
    to_step: str
    files: tuple[str, ...] = ()
    undone_by: str = ""


class UndoFinished(Payload, frozen=True, kw_only=True):
    """The files are what they were, but for those that are named."""

    event_type = "undo_finished"
    undo_id: str
    files: int = 0
    left_alone: tuple[str, ...] = ()


class StepOutcomeUnknown(Payload, frozen=True, kw_only=True):
    """The process ended while a step ran, and nothing shows how the step ended: a user is asked."""

    event_type = "step_outcome_unknown"
    step_id: str
    known: str
    """The call, and why its outcome is unknown."""


class StepOutcomeAnswered(Payload, frozen=True, kw_only=True):
    """A user answered for a step whose outcome is unknown, or for the failed step of a task."""

    event_type = "step_outcome_answered"
    step_id: str
    answer: Literal["done", "retry", "skip", "abort"]
    answered_by: str = ""
