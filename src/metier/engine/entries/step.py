"""Entries of steps: intent, result, retry, unknown outcome, hooks, undone file changes. Pure values."""

from typing import Annotated, Literal

from msgspec import field

from metier.decisions import ActionStep, StepStatus, TaskState
from metier.engine.entries.base import JournalEntry, TimedEntry
from metier.messages import MediaPart, Spent
from metier.tools.effects import Effect
from metier.tools.files.file_state import FileState
from metier.tools.hook_definitions import HookDecision, HookEvent, HookStatus
from metier.values import JsonValue, OmitDefault, StoredValue


class FileChange(StoredValue, frozen=True, kw_only=True):
    """The state of one path before and after. None means that it did not exist."""

    path: str
    """Path relative to the workspace."""
    before: FileState | None = None
    after: FileState | None = None


class SpoolIdentity(StoredValue, frozen=True, kw_only=True):
    """Folder of the notes about a step's effect. Only a process that sees this very folder may conclude from a
    missing note that the effect never started."""

    machine: str
    boot: str = ""
    folder: str
    """Random name stored in the folder itself: a path doesn't identify the disk behind it."""


class StepStarted(TimedEntry, frozen=True, kw_only=True, tag="step_started"):
    """The intent, synced before the effect starts."""

    step_id: str
    attempt: int = 1
    # Not only in the decision, because a user or a hook may have edited the call since.
    action: ActionStep
    effect: Effect
    # In the intent, so that a repetition after a crash uses the same key.
    idempotency_key: str
    verdict: str = ""
    """Policy decision; `ask` if a user then approved it."""
    rule: str = ""
    """The deciding rule and its scope; empty if the profile decided."""
    before: JsonValue = None
    """The tool's record of the state before its effect, such as the hash of the file to replace."""
    spool: SpoolIdentity | None = None
    """None for repeatable effects, and in journals of versions that did not record it."""
    read_only: Annotated[bool, OmitDefault()] = False
    """True if its program runs in the read-only sandbox without a question; the effect is then `read`."""


class StepFinished(TimedEntry, frozen=True, kw_only=True, tag="step_finished"):
    step_id: str
    status: StepStatus
    text: str
    """Text for the model."""
    is_error: bool = False
    exit_code: int | None = None
    stdout_summary: str = ""
    stderr_summary: str = ""
    stdout_bytes: int = 0
    stderr_bytes: int = 0
    duration_ms: float = 0.0
    error_type: str = ""
    truncated: bool = False
    digest: str = ""
    """Blob with the whole text if `text` is truncated."""
    retryable: bool = False
    counts_as_failure: bool = False
    """True if the failure policy applies: a skill's work failed, not a call that the model can correct."""
    artifacts: tuple[dict[str, JsonValue], ...] = ()
    adopted: bool = False
    """True if the result was found after a crash instead of produced by this attempt."""
    spent: Spent | None = None
    outcome: TaskState | None = None
    """Status that a failed skill reported: `timeout`, `blocked`, `escalated`."""
    skill_name: str = ""
    """Skill whose script or code ran; empty for other tools."""
    script: str = ""
    verdict: str = ""
    """Policy decision and rule of a rejected call."""
    rule: str = ""
    changes: tuple[FileChange, ...] = ()
    """Its changes in the workspace; see `engine.execution.file_changes`."""
    changes_unknown: str = ""
    """Reason why its changes are unknown, if it may have made some."""
    media: Annotated[tuple[MediaPart, ...], OmitDefault()] = ()
    """Pictures and documents for the model in addition to `text`."""
    nearby: dict[str, str] = field(default_factory=dict)
    """Files of project instructions at the end of `text`, path → hash; see `engine.nearby_instructions`."""
    diff: Annotated[str | None, OmitDefault()] = None
    """The change of `Write` or `Edit` as a unified diff; empty if nothing changed, None if unknown."""


class StepRetried(JournalEntry, frozen=True, kw_only=True, tag="step_retried"):
    step_id: str
    reason: str
    wants_write: Annotated[bool, OmitDefault()] = False
    """The read-only sandbox blocked it for this reason: a user is asked whether it may run with write access."""


class FailureTold(JournalEntry, frozen=True, kw_only=True, tag="failure_told"):
    """A skill's work failed and the run continues: the model reads the error and the alternatives."""

    step_id: str
    candidates: tuple[str, ...] = ()


class StepInDoubt(JournalEntry, frozen=True, kw_only=True, tag="step_in_doubt"):
    """The effect started and its outcome is unknown."""

    step_id: str
    known: str
    """Known facts: the command, its start, and traces of its effect."""


class DoubtResolved(JournalEntry, frozen=True, kw_only=True, tag="doubt_resolved"):
    step_id: str
    answer: Literal["done", "retry", "skip", "abort"]
    answered_by: str = ""
    text: str = ""


class UndoStarted(JournalEntry, frozen=True, kw_only=True, tag="undo_started"):
    """The intent to restore these files. After a crash, the next undo completes it."""

    undo_id: str
    to_step: str
    """The first step whose changes are undone."""
    changes: tuple[FileChange, ...]
    """States before the undo, and the ones that it restores."""
    undone_by: str = ""


class UndoFinished(JournalEntry, frozen=True, kw_only=True, tag="undo_finished"):
    undo_id: str
    files: int = 0
    left_alone: tuple[str, ...] = ()
    """Paths that could not be restored, each with the reason."""


class HookOutcome(StoredValue, frozen=True, kw_only=True):
    """The outcome of one hook."""

    command: str
    source: str = ""
    status: HookStatus = "ok"
    decision: HookDecision = ""
    exit_code: int | None = None
    message: str = ""
    """Its message to the user; for a failed hook, the reason."""
    ignored: str = ""
    """A requested change that hooks can't make."""
    duration_ms: float = 0.0


class HooksRan(JournalEntry, frozen=True, kw_only=True, tag="hooks_ran"):
    """All hooks of one moment ran; these are their merged answers."""

    event: HookEvent
    step_id: str = ""
    """Its step; empty for the run as a whole."""
    outcomes: tuple[HookOutcome, ...] = ()
    decision: HookDecision = ""
    """The strictest decision."""
    reason: str = ""
    context: str = ""
    """Text added for the model."""
    updated_input: dict[str, JsonValue] | None = None
    """New arguments of the call, evaluated like those of the model."""
    changes: Annotated[tuple[FileChange, ...], OmitDefault()] = ()
    """The hooks' own changes to the file that the step wrote, such as a formatter's."""
