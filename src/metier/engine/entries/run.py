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
from metier.tools.hooks.definition import HookCommand
from metier.values import OmitDefault, StoredValue


class RunWorktree(StoredValue, frozen=True, kw_only=True):
    """The git worktree that a run works in instead of the workspace."""

    path: str
    base: str
    """Names what it held when it was made."""


CALL_RULES = 4
"""Version 2 accepts short names of toolset tools, native calls in JSON mode and two names of some arguments
(`skill` and `skill_name`), and refuses every call in JSON.

Version 3 accepts a single `finish` that is written as JSON text.

Version 4 names tools in errors as the model must write them.
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
    """The level that encloses commands that run without a question; None in journals of older versions."""
    context_id: str
    trace_id: str
    trace_parent: str = ""
    """The W3C `traceparent` of the request or step that the run works for; empty where it begins a trace."""
    parent_run_id: str = ""
    forked_at: int = 0
    """So many entries, this one among them, were taken over from the parent; none of them was done by this run."""
    workspace: str
    worktree: Annotated[RunWorktree | None, OmitDefault()] = None
    limits: Limits = Limits()
    pins: dict[str, str] = field(default_factory=dict)
    """Definition id → digest of the blob that holds its bytes."""
    extra_context: str = ""
    """What was piped in beside the task, and texts that were attached."""
    attachments: Annotated[tuple[MediaPart, ...], OmitDefault()] = ()
    """Pictures and documents that the model sees with the task."""
    order: ChildRequest | None = None
    """Nothing where a user put the task in words."""
    seal: str = ""
    """Made with a secret of the store that the run was started in; in no archive. Without it the run is foreign."""
    hooks: Annotated[tuple[HookCommand, ...], OmitDefault()] = ()
    """The commands that run at named moments, as they were when the run began."""
    environment: str = ""
    """What the model is told about date, system and folder: as they were when the run began."""
    started_at: str = ""
    flags: Annotated[tuple[str, ...] | None, OmitDefault()] = None
    """Settings that the command line chose for this run alone; None in journals of older versions."""
    call_rules: Annotated[int, OmitDefault()] = 1
    """Version of the rules by which calls are read and refused; see `CALL_RULES`. 1 in journals of older versions."""

    @property
    def root(self) -> str:
        """The folder that its tools work in."""
        return self.worktree.path if self.worktree is not None else self.workspace


class RunAdopted(JournalEntry, frozen=True, kw_only=True, tag="run_adopted"):
    """A run that was not started in this store continues here, with what holds here. What came before is evidence.

    Nothing of it is authority: settings, rules, provider and limits are those of this entry, nothing is approved any
    more, and every step that was planned and not finished is put before a user.
    """

    provider: str
    model: str
    profile: str
    sandbox: str = "none"
    reading_sandbox: Annotated[ReadingLevel | None, OmitDefault()] = None
    """As in `RunStarted`."""
    workspace: str
    limits: Limits = Limits()
    pins: dict[str, str] = field(default_factory=dict)
    hooks: Annotated[tuple[HookCommand, ...], OmitDefault()] = ()
    """Those of this host."""
    nonce: str = ""
    """Makes the ids of approvals that are asked from now on ones that could not be known, and answered, before."""
    tells_begun: Annotated[bool, OmitDefault()] = False
    """Who is asked about a step that had started is told so; entries of older versions do not say it."""
    seal: str = ""


class RunPaused(TimedEntry, frozen=True, kw_only=True, tag="run_paused"):
    pause: Literal[
        "approval", "input", "delegation", "signal", "in_doubt", "storage", "explicit", "step_failed", "changed_code",
        "limit",
    ]  # fmt: skip
    reason: str
    limit: Annotated[Limit | None, OmitDefault()] = None
    """The one that it waits with."""


class RunResumed(TimedEntry, frozen=True, kw_only=True, tag="run_resumed"):
    reason: str
    driver: str
    disabled_tools: tuple[str, ...] | None = None
    """What the access file turns off now; nothing where it was not read."""
    left_by: Annotated[str, OmitDefault()] = ""
    """The driver before this one, if it died while it drove the run."""


class RunFinished(TimedEntry, frozen=True, kw_only=True, tag="run_finished"):
    result: str
    duration_ms: float = 0


class RunFailed(TimedEntry, frozen=True, kw_only=True, tag="run_failed"):
    reason: str
    message: str
    status: TaskState = "failed"
    result: str = ""
    """What was done before it failed, where there is something to give."""
    duration_ms: float = 0


class RunReopened(TimedEntry, frozen=True, kw_only=True, tag="run_reopened"):
    """A run that failed continues where it failed; one that a task waits for is waited for again."""

    reason: str
    reopened_by: str = ""
    step_id: str = ""
    """The step whose child run continues, where the run itself did not fail."""


class ModelChanged(JournalEntry, frozen=True, kw_only=True, tag="model_changed"):
    """A run that its provider ended continues with another provider, model, address or window."""

    provider: str
    model: str
    options: ModelOptions
    """The model options from here on."""
    settings: tuple[str, ...] = ()
    """Names of the settings whose values differ from before."""
    pins: dict[str, str] = field(default_factory=dict)
    """The settings from here on, pinned like those that the run was started with."""
    changed_by: str = ""


class SkillCodeAccepted(JournalEntry, frozen=True, kw_only=True, tag="skill_code_accepted"):
    """The files of skills changed since the run began, and it continues with the new ones."""

    code: dict[str, str] = field(default_factory=dict)
    """Pin → hash of the tree that is used from now on."""
    accepted_by: str = ""
