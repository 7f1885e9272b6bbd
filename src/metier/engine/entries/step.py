"""Entries of steps: intent, result, retry, unknown outcome, hooks, undone file changes. Pure values."""

from typing import Annotated, Literal

from msgspec import field

from metier.decisions import ActionStep, StepStatus, TaskState
from metier.engine.entries.base import JournalEntry, TimedEntry
from metier.messages import MediaPart, Spent
from metier.tools.effects import Effect
from metier.tools.files.file_state import FileState
from metier.tools.hooks.definition import HookEvent
from metier.tools.hooks.protocol import HookDecision, HookStatus
from metier.values import JsonValue, OmitDefault, StoredValue


class FileChange(StoredValue, frozen=True, kw_only=True):
    """One path, before and after. None stands for a path at which nothing was."""

    path: str
    """Relative to the workspace."""
    before: FileState | None = None
    after: FileState | None = None


class SpoolIdentity(StoredValue, frozen=True, kw_only=True):
    """Where the notes of a step's effect are written. Only a process that sees this very folder may read from a missing
    note that the effect never began.
    """

    machine: str
    boot: str = ""
    folder: str
    """A random name that lies in the folder itself: a path says nothing about which disk is behind it."""


class StepStarted(TimedEntry, frozen=True, kw_only=True, tag="step_started"):
    """The intent, synced before the effect begins."""

    step_id: str
    attempt: int = 1
    action: ActionStep
    effect: Effect
    idempotency_key: str
    verdict: str = ""
    """What the policy said to it; `ask` where a user then approved it."""
    rule: str = ""
    """Which rule of which scope said so; empty where the profile did."""
    before: JsonValue = None
    """What the tool noted of the world before its effect, e.g. the hash of the file it will replace."""
    spool: SpoolIdentity | None = None
    """None for effects that may be repeated, and in journals of versions that did not record it."""
    read_only: Annotated[bool, OmitDefault()] = False
    """Its program runs in the read-only sandbox, because it runs without a question; the effect is then `read`."""


class StepFinished(TimedEntry, frozen=True, kw_only=True, tag="step_finished"):
    step_id: str
    status: StepStatus
    text: str
    """What the model reads."""
    is_error: bool = False
    exit_code: int | None = None
    stdout_summary: str = ""
    stderr_summary: str = ""
    stdout_bytes: int = 0
    stderr_bytes: int = 0
    duration_ms: float = 0
    error_type: str = ""
    truncated: bool = False
    digest: str = ""
    """The blob that holds the whole text, where `text` is only its beginning and end."""
    retryable: bool = False
    counts_as_failure: bool = False
    """The failure policy applies: work of a skill failed, rather than a call that the model can correct."""
    artifacts: tuple[dict[str, JsonValue], ...] = ()
    adopted: bool = False
    """The result was found after a crash, not produced now."""
    spent: Spent | None = None
    outcome: TaskState | None = None
    """How a skill that failed says it ended: `timeout`, `blocked`, `escalated`."""
    skill_name: str = ""
    """The skill whose script or code ran; empty for other tools."""
    script: str = ""
    verdict: str = ""
    """Of a call that was refused: what the policy said to it, and by which rule."""
    rule: str = ""
    changes: tuple[FileChange, ...] = ()
    """What it changed in the workspace; see `engine.execution.file_changes`."""
    changes_unknown: str = ""
    """Why its changes are not known, where it may have made some."""
    media: Annotated[tuple[MediaPart, ...], OmitDefault()] = ()
    """Pictures and documents that the model sees beside `text`."""
    nearby: dict[str, str] = field(default_factory=dict)
    """Files of project instructions that `text` ends with, path → hash; see `engine.nearby_instructions`."""
    diff: Annotated[str | None, OmitDefault()] = None
    """The change that `Write` or `Edit` made, as a unified diff; empty if it changed nothing, None if not known."""


class StepRetried(JournalEntry, frozen=True, kw_only=True, tag="step_retried"):
    step_id: str
    reason: str
    wants_write: Annotated[bool, OmitDefault()] = False
    """The read-only sandbox refused what the reason says: a user is asked whether it may run with write access."""


class FailureTold(JournalEntry, frozen=True, kw_only=True, tag="failure_told"):
    """The work of a skill failed and the run continues: the model reads the error, and who else could do the work."""

    step_id: str
    candidates: tuple[str, ...] = ()


class StepInDoubt(JournalEntry, frozen=True, kw_only=True, tag="step_in_doubt"):
    """The effect began and its outcome is unknown."""

    step_id: str
    known: str
    """What is known: the command, when it started, what was found."""


class DoubtResolved(JournalEntry, frozen=True, kw_only=True, tag="doubt_resolved"):
    step_id: str
    answer: Literal["done", "retry", "skip", "abort"]
    answered_by: str = ""
    text: str = ""


class UndoStarted(JournalEntry, frozen=True, kw_only=True, tag="undo_started"):
    """The intent: these files are about to become what they were. A kill after it is made good by the next undo."""

    undo_id: str
    to_step: str
    """The first step whose changes are taken back."""
    changes: tuple[FileChange, ...]
    """As the undo finds the files, and as it leaves them."""
    undone_by: str = ""


class UndoFinished(JournalEntry, frozen=True, kw_only=True, tag="undo_finished"):
    undo_id: str
    files: int = 0
    left_alone: tuple[str, ...] = ()
    """Paths that could not be restored, each with the reason."""


class HookOutcome(StoredValue, frozen=True, kw_only=True):
    """One command of the moment."""

    command: str
    source: str = ""
    status: HookStatus = "ok"
    decision: HookDecision = ""
    exit_code: int | None = None
    message: str = ""
    """What it says to the user; of one that failed, why."""
    ignored: str = ""
    """What it wanted and cannot have."""
    duration_ms: float = 0


class HooksRan(JournalEntry, frozen=True, kw_only=True, tag="hooks_ran"):
    """Every command of one moment ran; what they said together."""

    event: HookEvent
    step_id: str = ""
    """The step that it is about; empty where the run as a whole is meant."""
    outcomes: tuple[HookOutcome, ...] = ()
    decision: HookDecision = ""
    """The strictest of theirs."""
    reason: str = ""
    context: str = ""
    """What the model is told."""
    updated_input: dict[str, JsonValue] | None = None
    """The arguments that the call has from now on. They are judged like those of the model."""
    changes: Annotated[tuple[FileChange, ...], OmitDefault()] = ()
    """What they made of the file that the step had written, such as a formatter does."""
