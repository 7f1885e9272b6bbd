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
    """The model wrote or updated its plan: always the whole list."""

    event_type = "plan_updated"
    step_id: str
    steps: tuple[PlanStep, ...]
    summary: str = ""


class StepStarted(Payload, frozen=True, kw_only=True):
    """An action is about to have its effect; the intent is on disk. `skill_name` owns the code, or is in charge."""

    event_type = "step_started"
    step_id: str
    action: str
    tool: str = ""
    arguments: JsonValue = None
    effect: str = ""
    idempotency_key: OwnText = ""
    verdict: str = ""
    """Policy decision; `ask` if a user then approved it."""
    rule: str = ""
    read_only: bool = False
    """True if its program runs in the read-only sandbox, so that no user was asked."""
    skill_name: str = ""


class CallRefused(Payload, frozen=True, kw_only=True):
    """A call was not run: a rule, a user, its schema, or a closed path prevented it."""

    event_type = "call_refused"
    step_id: str
    action: str
    tool: str = ""
    arguments: JsonValue = None
    status: StepStatus = "denied"
    error_type: str = ""
    verdict: str = ""
    """Policy decision: `deny`, `ask` if a user then denied it, `allow` if something else prevented it."""
    rule: str = ""
    reason: str = ""
    skill_name: str = ""


class SkillStepExecuted(Payload, frozen=True, kw_only=True):
    """A step ended: its status, duration, and the start and end of its output."""

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
    duration_ms: float = 0.0
    retry_count: int = 0
    error_type: str = ""
    truncated: bool = False
    excerpt: str = ""
    """First lines of the output; the last lines of a failed step."""
    output_lines: int = 0
    """Number of lines of output; 0 in logs of versions that did not count them."""
    diff: str | None = None
    """First lines of the change of `Write` or `Edit`; empty if nothing changed, None if unknown."""
    diff_lines: int = 0


class StepRetryScheduled(Payload, frozen=True, kw_only=True):
    """A step failed with a transient error and is retried once."""

    event_type = "step_retry_scheduled"
    step_id: str
    retry_count: int
    reason: str
    delay_seconds: float = 0.0


class ArtifactWritten(Payload, frozen=True, kw_only=True):
    """A file of the run was written."""

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
    """The answer arrived."""

    event_type = "input_received"
    request_id: str
    answered_by: str = ""
    fields: tuple[str, ...] = ()


class UserMessageAdded(Payload, frozen=True, kw_only=True):
    """A message that the user sent while the run was working was added to the next model request."""

    event_type = "user_message_added"
    message_id: str
    text: str
    sent_by: str = ""


class HooksRan(Payload, frozen=True, kw_only=True):
    """The user's hooks for one moment of the run ended, with these merged answers."""

    event_type = "hooks_ran"
    hook_event: str
    """The moment: `PreToolUse`, `Stop` and so on."""
    step_id: str = ""
    commands: tuple[str, ...] = ()
    """Commands that ran, in order."""
    failures: tuple[str, ...] = ()
    """Hooks that hung, crashed or printed too much, each with the reason."""
    messages: tuple[str, ...] = ()
    """Their messages to the user."""
    decision: str = ""
    """`deny`, `ask`, `stop`, or empty."""
    reason: str = ""
    changed_call: bool = False
    """True if the call's arguments changed."""
    added_text: bool = False
    """True if text was added for the model."""

    @property
    def summary(self) -> str:
        said = [f"{self.decision}: {self.reason}" if self.decision else "", *self.messages]
        effect = "changed the call" if self.changed_call else ""
        return "; ".join(text for text in (*said, effect, *self.failures) if text)


class UndoStarted(Payload, frozen=True, kw_only=True):
    """Files are about to be restored to their state before a step."""

    event_type = "undo_started"
    undo_id: str
    to_step: str
    files: tuple[str, ...] = ()
    undone_by: str = ""


class UndoFinished(Payload, frozen=True, kw_only=True):
    """The files are restored, except for the named ones."""

    event_type = "undo_finished"
    undo_id: str
    files: int = 0
    left_alone: tuple[str, ...] = ()


class StepOutcomeUnknown(Payload, frozen=True, kw_only=True):
    """The process ended while a step ran, and the step's outcome is unknown: a user is asked."""

    event_type = "step_outcome_unknown"
    step_id: str
    known: str
    """The call, and why its outcome is unknown."""


class StepOutcomeAnswered(Payload, frozen=True, kw_only=True):
    """A user answered for a step with an unknown outcome, or for the failed step of a task."""

    event_type = "step_outcome_answered"
    step_id: str
    answer: Literal["done", "retry", "skip", "abort"]
    answered_by: str = ""
