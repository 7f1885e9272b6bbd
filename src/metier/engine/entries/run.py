"""Entries of a whole run: its start, adoption, pauses, changes and end. Pure values."""

from typing import Annotated, Literal

from msgspec import field

from metier.approval.profile import ReadingLevel
from metier.decisions import TaskState
from metier.engine.entries.base import JournalEntry, TimedEntry
from metier.engine.entries.limits import Limit, Limits
from metier.engine.entries.task import ChildRequest
from metier.messages import MediaPart
from metier.providers.options import ModelOptions
from metier.tools.hook_definitions import HookCommand
from metier.values import OmitDefault, StoredValue


class RunWorktree(StoredValue, frozen=True, kw_only=True):
    """The git worktree that a run works in instead of the workspace."""

    path: str
    base: str
    """Commit and changes at its creation."""


# A started run keeps its version: with other rules, a resume would build other requests than the journal has.
CALL_RULES = 4
"""Version 2 accepts short names of toolset tools, native calls in JSON mode and two names of some arguments
(`skill` and `skill_name`), and refuses every call in JSON.

Version 3 accepts a single `finish` that is written as JSON text.

Version 4 names tools in errors as the model must write them, and writes "1 turn" in the message about a limit.
"""


class RunStarted(JournalEntry, frozen=True, kw_only=True, tag="run_started"):
    task: str
    mode: Literal["live", "dry_run"] = "live"
    agent: str = ""
    provider: str
    model: str
    profile: str = "permissive"
    sandbox: str = "none"
    reading_sandbox: Annotated[ReadingLevel | None, OmitDefault()] = None
    """Sandbox level of commands that run without a question; None in journals of older versions."""
    context_id: str
    trace_id: str
    trace_parent: str = ""
    """The W3C `traceparent` of the request or step that the run works for; empty if it starts a trace."""
    parent_run_id: str = ""
    forked_at: int = 0
    """Number of entries, including this one, that were copied from the parent."""
    workspace: str
    worktree: Annotated[RunWorktree | None, OmitDefault()] = None
    limits: Limits = Limits()
    pins: dict[str, str] = field(default_factory=dict)
    """Definition ID → digest of the blob with its bytes."""
    extra_context: str = ""
    """Piped input and attached texts."""
    attachments: Annotated[tuple[MediaPart, ...], OmitDefault()] = ()
    """Pictures and documents for the model."""
    order: ChildRequest | None = None
    """The request of a parent; None if a user wrote the task."""
    seal: str = ""
    """Signature with the store's secret; not in archives. Without it the run is foreign."""
    hooks: Annotated[tuple[HookCommand, ...], OmitDefault()] = ()
    """Hooks of the run, as they were at its start."""
    # Recorded, because a run that is resumed on another day must send the same bytes.
    environment: str = ""
    """Date, system and folder at the start of the run, as the model reads them."""
    started_at: str = ""
    flags: Annotated[tuple[str, ...] | None, OmitDefault()] = None
    """Settings that the command line set for this run; None in journals of older versions."""
    call_rules: Annotated[int, OmitDefault()] = 1
    """Version of the rules for reading and rejecting calls; see `CALL_RULES`. 1 in journals of older versions."""

    @property
    def root(self) -> str:
        """Return the folder that its tools work in."""
        return self.worktree.path if self.worktree is not None else self.workspace


class RunAdopted(JournalEntry, frozen=True, kw_only=True, tag="run_adopted"):
    """A run from another store continues here, with this host's settings. Earlier entries are evidence, not authority.

    Nothing of it is authority: settings, rules, provider and limits are those of this entry, nothing is approved any
    more, and every step that was planned and not finished is put before a user.
    """

    provider: str
    model: str
    profile: str
    sandbox: str = "none"
    reading_sandbox: Annotated[ReadingLevel | None, OmitDefault()] = None
    """Like in `RunStarted`."""
    workspace: str
    limits: Limits = Limits()
    pins: dict[str, str] = field(default_factory=dict)
    hooks: Annotated[tuple[HookCommand, ...], OmitDefault()] = ()
    """Hooks of this host."""
    nonce: str = ""
    """Makes IDs of new approvals unpredictable, so that they can't have been answered before."""
    tells_begun: Annotated[bool, OmitDefault()] = False
    """True if questions about a step mention that it had started; missing in entries of older versions."""
    seal: str = ""


class RunPaused(TimedEntry, frozen=True, kw_only=True, tag="run_paused"):
    # Journals have these words: one may be added, none removed.
    pause: Literal[
        "approval", "input", "delegation", "signal", "in_doubt", "storage", "explicit", "step_failed", "changed_code",
        "limit",
    ]  # fmt: skip
    reason: str
    limit: Annotated[Limit | None, OmitDefault()] = None
    """The limit that it waits at."""


TAKEN_BY_WORKER = "taken by a worker"
"""Reason of a run's resumption when a worker takes it from the queue; stored in journals."""


class RunResumed(TimedEntry, frozen=True, kw_only=True, tag="run_resumed"):
    reason: str
    driver: str
    disabled_tools: tuple[str, ...] | None = None
    """Tools that the access file disables now; None if it was not read."""
    left_by: Annotated[str, OmitDefault()] = ""
    """The previous driver, if it died while it drove the run."""


class RunFinished(TimedEntry, frozen=True, kw_only=True, tag="run_finished"):
    result: str
    duration_ms: float = 0.0


class RunFailed(TimedEntry, frozen=True, kw_only=True, tag="run_failed"):
    reason: str
    message: str
    status: TaskState = "failed"
    result: str = ""
    """Partial work of a failed run, if there is any."""
    duration_ms: float = 0.0


class RunReopened(TimedEntry, frozen=True, kw_only=True, tag="run_reopened"):
    """A failed run continues at its failure, and a waiting task waits for it again."""

    reason: str
    reopened_by: str = ""
    step_id: str = ""
    """Step whose child run continues, if the run itself did not fail."""


class ModelChanged(JournalEntry, frozen=True, kw_only=True, tag="model_changed"):
    """A run that its provider ended continues with another provider, model, address or window."""

    provider: str
    model: str
    options: ModelOptions
    """Model options from here on."""
    settings: tuple[str, ...] = ()
    """Names of the changed settings."""
    pins: dict[str, str] = field(default_factory=dict)
    """Pins of the settings from here on."""
    changed_by: str = ""


class SkillCodeAccepted(JournalEntry, frozen=True, kw_only=True, tag="skill_code_accepted"):
    """The files of skills changed since the run started, and it continues with the new ones."""

    code: dict[str, str] = field(default_factory=dict)
    """Pin → hash of the tree from now on."""
    accepted_by: str = ""
