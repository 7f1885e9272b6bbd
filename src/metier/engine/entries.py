"""What a journal holds: one typed entry per thing that happened, exact enough to fold a run's state from. Pure values.

An entry is never changed once written. A field may be added with a default; a kind may be added; nothing else.
"""

from typing import Annotated, Literal

from pydantic import Field, JsonValue, TypeAdapter

from metier.context.trimming import Trim
from metier.decisions import ActionStep, ModelDecision, SkillCall, TaskState
from metier.definitions.acceptance import Criterion
from metier.engine.entry_types.hooks import HooksRan
from metier.engine.entry_types.limits import (
    Limit,
    LimitsRaised,
    ModelChanged,
    OnLimit,
    RunReopened,
    SkillCodeAccepted,
)
from metier.engine.entry_types.steps import (
    DoubtResolved,
    FailureTold,
    StepFinished,
    StepInDoubt,
    StepRetried,
    StepStarted,
)
from metier.engine.entry_types.timed import TimedEntry
from metier.engine.entry_types.undo import UndoFinished, UndoStarted
from metier.events.skill import Candidate, DisclosedFile
from metier.messages import WHEN_USED, MediaPart, ModelReply, Spent, Value
from metier.tools.hooks.definition import HookCommand


class Limits(Value):
    """What bounds a run, pinned when it starts."""

    max_turns: int = 8
    max_cost_usd: float | None = None
    on_step_failure: Literal[
        "retry_once_then_fallback_then_abort", "fallback_then_abort", "retry_once_then_abort", "abort"
    ] = "retry_once_then_fallback_then_abort"
    max_repeated_calls: int = 3
    zero_candidates: Literal["fallback_all_skills", "fail_fast"] = "fallback_all_skills"
    """In every journal, and read by nothing: the settings that a run pins say it."""
    max_delegation_depth: int = 4
    delegation_share: float = 0.75
    """The part of what is left of the budget that a child run gets."""
    max_children_per_call: int = Field(default=8, exclude_if=lambda number: number == 8)
    """How many children one call may start."""
    on_limit: OnLimit = Field(default="fail", exclude_if=lambda word: word == "fail")
    delegates_together: bool = Field(default=False, exclude_if=lambda together: not together)
    """Calls of `delegate` that stand side by side in a reply begin together. Runs of older versions have it off."""
    ends_at_first_finish: bool = Field(default=False, exclude_if=lambda ends: not ends)
    """A second `finish` in a reply does not keep the first from ending the run. Runs of older versions have it off."""


class ChildRequest(Value):
    """What a run is asked to do on behalf of another one, or of a task definition, and within which bounds."""

    task: str
    agent: str = ""
    model: str = ""
    task_id: str = ""
    """The task definition that plans the run; its steps are runs of their own."""
    inputs: dict[str, str] = Field(default_factory=dict)
    """Of that definition, all of them, defaults filled in."""
    step_of: str = ""
    """The task definition that this run is a step of."""
    step_file: str = ""
    brief: str = ""
    """The body of the whole task, where `task` is a later step of it."""
    criteria: tuple[Criterion, ...] = ()
    output_schema: dict[str, JsonValue] | None = None
    limits: Limits = Limits()
    lineage: tuple[str, ...] = ()
    """Who is above, the first one first: `agent:ID` or `task:ID`."""
    under_skill: str = ""
    """The skill that was in charge of the run above: its rules bind this one too."""
    call: SkillCall | None = None
    """The skill whose code is all that the run calls: no model is asked what to do."""
    reads_only: bool = Field(default=False, exclude_if=lambda reads: not reads)
    """It works beside other runs in one workspace, so it and the runs below it change nothing."""
    worktree: bool = Field(default=False, exclude_if=lambda has_one: not has_one)
    """It works in a git worktree of its own; what it changed is offered as a diff."""

    @property
    def checks_result(self) -> bool:
        return self.output_schema is not None or any(criterion.is_checkable for criterion in self.criteria)


class RunWorktree(Value):
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


class RunStarted(Value):
    kind: Literal["run_started"] = "run_started"
    task: str
    mode: Literal["live", "dry_run"] = "live"
    agent: str = ""
    provider: str
    model: str
    profile: str = "permissive"
    sandbox: str = "none"
    context_id: str
    trace_id: str
    trace_parent: str = ""
    """The W3C `traceparent` of the request or step that the run works for; empty where it begins a trace."""
    parent_run_id: str = ""
    forked_at: int = 0
    """So many entries, this one among them, were taken over from the parent; none of them was done by this run."""
    workspace: str
    worktree: RunWorktree | None = Field(default=None, exclude_if=lambda tree: tree is None)
    limits: Limits = Limits()
    pins: dict[str, str] = Field(default_factory=dict)
    """Definition id → digest of the blob that holds its bytes."""
    extra_context: str = ""
    """What was piped in beside the task, and texts that were attached."""
    attachments: tuple[MediaPart, ...] = Field(default=(), exclude_if=lambda attached: not attached)
    """Pictures and documents that the model sees with the task."""
    order: ChildRequest | None = None
    """Nothing where a user put the task in words."""
    seal: str = ""
    """Made with a secret of the store that the run was started in; in no archive. Without it the run is foreign."""
    hooks: tuple[HookCommand, ...] = Field(default=(), exclude_if=lambda hooks: not hooks)
    """The commands that run at named moments, as they were when the run began."""
    environment: str = ""
    """What the model is told about date, system and folder: as they were when the run began."""
    started_at: str = ""
    flags: tuple[str, ...] | None = Field(default=None, exclude_if=lambda flags: flags is None)
    """Settings that the command line chose for this run alone; None in journals of older versions."""
    call_rules: int = Field(default=1, exclude_if=lambda version: version == 1)
    """Version of the rules by which calls are read and refused; see `CALL_RULES`. 1 in journals of older versions."""

    @property
    def root(self) -> str:
        """The folder that its tools work in."""
        return self.worktree.path if self.worktree is not None else self.workspace


class RunAdopted(Value):
    """A run that was not started in this store continues here, with what holds here. What came before is evidence.

    Nothing of it is authority: settings, rules, provider and limits are those of this entry, nothing is approved any
    more, and every step that was planned and not finished is put before a user.
    """

    kind: Literal["run_adopted"] = "run_adopted"
    provider: str
    model: str
    profile: str
    sandbox: str = "none"
    workspace: str
    limits: Limits = Limits()
    pins: dict[str, str] = Field(default_factory=dict)
    hooks: tuple[HookCommand, ...] = Field(default=(), exclude_if=lambda hooks: not hooks)
    """Those of this host."""
    nonce: str = ""
    """Makes the ids of approvals that are asked from now on ones that could not be known, and answered, before."""
    tells_begun: bool = Field(default=False, exclude_if=lambda tells: not tells)
    """Who is asked about a step that had started is told so; entries of older versions do not say it."""
    seal: str = ""


class CatalogLoaded(Value):
    kind: Literal["catalog_loaded"] = "catalog_loaded"
    skills: tuple[str, ...]
    problems: int = 0
    shadowed: tuple[str, ...] = ()
    duration_ms: float = 0


class SimilarSkill(Value):
    """A skill that embeddings found near the request, with the cosine between the two."""

    skill_name: str
    score: float


RANKING_VERSION = 2
"""Raised when the same skills and task rank differently than before. 0.2 wrote version 1."""


class SkillsRanked(Value):
    kind: Literal["skills_ranked"] = "skills_ranked"
    candidates: tuple[Candidate, ...]
    considered: int
    strategy: str = ""
    min_score: float = 55.0
    """From this score on a candidate counts as an answer to the request."""
    similar: tuple[SimilarSkill, ...] = Field(default=(), exclude_if=lambda similar: not similar)
    """What embeddings found, nearest first, so that a replay asks for none."""
    version: int = Field(default=1, exclude_if=lambda version: version == 1)
    """The `RANKING_VERSION` that made it. A replay keeps the ranking of another version instead of computing it."""


class DisclosedPiece(Value):
    """A piece of skill content; its text is a blob, so that the journal stays small."""

    skill: str
    stage: Literal[1, 2, 3]
    file: DisclosedFile
    digest: str


class ContextDisclosed(Value):
    """Content was put in front of the model, or nothing was needed."""

    kind: Literal["context_disclosed"] = "context_disclosed"
    pieces: tuple[DisclosedPiece, ...] = ()
    refused: tuple[str, ...] = ()


class ModelCallStarted(TimedEntry):
    """The intent: a request is about to be sent."""

    kind: Literal["model_call_started"] = "model_call_started"
    turn: int
    request_hash: str
    prefix_hash: str
    estimated_tokens: int
    counted_tokens: int | None = None
    """What the provider counted, where it was asked because the estimate was close to the limit."""
    repair: bool = False
    disabled_tools: tuple[str, ...] = ()
    """What the access file turned off in this turn."""
    trims: tuple[Trim, ...] = ()
    """What this request and those that follow no longer hold, for want of room."""
    prompt_limit: int | None = Field(default=None, exclude_if=lambda limit: limit is None)
    """The size in tokens that prompts have from here on, because the provider found a larger one too long."""
    is_json: bool | None = None
    """The decision was asked for in JSON, not by tool calls; in older journals the settings say it."""


class ModelReplied(TimedEntry):
    """Recorded before it is decoded: a reply that was paid for is never asked for again."""

    kind: Literal["model_replied"] = "model_replied"
    turn: int
    reply: ModelReply
    cost_usd: float = 0.0
    attempts: int = 1
    latency_ms: float = 0


class Rejection(Value):
    """A call that is answered with a sentence instead of being run."""

    call_id: str
    tool: str
    code: str
    message: str
    text: str = ""
    """What the model reads, where that is not the message."""


class DecisionMade(Value):
    kind: Literal["decision_made"] = "decision_made"
    turn: int
    decision: ModelDecision
    path: Literal["native", "json", "repaired", "text", "offline"]
    rejected: tuple[Rejection, ...] = ()


class DecodeFailed(Value):
    kind: Literal["decode_failed"] = "decode_failed"
    turn: int
    reason: str
    message: str
    repair: bool
    """The model is told, once."""


class PlannedStep(Value):
    """One file of a task."""

    file: str
    name: str
    agent: str = ""


class TaskPlanned(Value):
    """The steps of the task definition that the run is pinned to."""

    kind: Literal["task_planned"] = "task_planned"
    steps: tuple[PlannedStep, ...]


class CallPlanned(Value):
    """The one call of a run that another skill ordered."""

    kind: Literal["call_planned"] = "call_planned"
    action: ActionStep


class ChildRequested(Value):
    """The intent of a step whose effect is another run. The id follows from the step: there is never a second child."""

    kind: Literal["delegated"] = "delegated"
    step_id: str
    child_run_id: str
    order: ChildRequest
    spent: Spent | None = None


class ChildEnded(Value):
    """How the other run ended; what it spent counts here too."""

    kind: Literal["child_ended"] = "child_ended"
    step_id: str
    child_run_id: str
    status: TaskState
    turns: int = 0
    cost_usd: float = 0.0
    input_tokens: int = 0
    output_tokens: int = 0


class ResultChecked(Value):
    """The result was held against the order: what does not hold, and whether the model may try once more."""

    kind: Literal["result_checked"] = "result_checked"
    failures: tuple[str, ...] = ()
    repair: bool = False


class ApprovalAsked(TimedEntry):
    kind: Literal["approval_asked"] = "approval_asked"
    approval_id: str
    step_id: str
    arguments_hash: str
    reason: str
    """Which rule asks, and why."""
    expires_at: str = ""
    justification: str = ""
    """What the model said it wants this for."""
    preview: str = ""
    """What the call would change, where its tool can show that."""
    base: str = ""
    """A hash of what the preview was made from."""
    leads_to: tuple[str, ...] = ()
    """Where its paths really lead, if that is elsewhere than they say: the answer is about these files."""
    input_schema: dict[str, JsonValue] = Field(default_factory=dict)
    """What edited arguments must satisfy."""
    risk: str = ""
    """What the tool says of itself; empty where nothing is known of it."""


class ApprovalDecided(TimedEntry):
    kind: Literal["approval_decided"] = "approval_decided"
    approval_id: str
    step_id: str
    decision: Literal["approved", "denied", "expired"]
    decided_by: str = ""
    reason: str = ""
    edited_arguments: dict[str, JsonValue] | None = None
    edited_base: str = ""
    """A hash of what the edited call would change, as it was when the approver approved it."""
    edited_leads_to: tuple[str, ...] = ()
    """As `ApprovalAsked.leads_to`, of the edited call."""
    remember: bool = False
    """The answer holds for the same tool until the run ends; for the shell, for the same command."""


class InputAsked(TimedEntry):
    kind: Literal["input_asked"] = "input_asked"
    request_id: str
    step_id: str
    question: str
    fields: JsonValue = None
    resumes: bool = False
    """The step itself asked: the answer does not end it, it continues with it."""
    spent: Spent | None = None


class InputGiven(TimedEntry):
    kind: Literal["input_given"] = "input_given"
    request_id: str
    values: dict[str, JsonValue]
    answered_by: str = ""


class ProgressVerified(Value):
    kind: Literal["progress_verified"] = "progress_verified"
    following: Literal["DISCLOSE_CONTEXT_STAGE", "CALL_LLM", "HANDOFF_OR_FINISH"]
    reason: str = ""


class HandedOff(Value):
    kind: Literal["handed_off"] = "handed_off"
    from_skill: str
    to_skill: str
    rationale: str
    fallback: bool = False


class RunPaused(TimedEntry):
    kind: Literal["run_paused"] = "run_paused"
    pause: Literal[
        "approval", "input", "delegation", "signal", "in_doubt", "storage", "explicit", "step_failed", "changed_code",
        "limit",
    ]  # fmt: skip
    reason: str
    limit: Limit | None = Field(default=None, exclude_if=lambda limit: limit is None)
    """The one that it waits with."""


class RunResumed(TimedEntry):
    kind: Literal["run_resumed"] = "run_resumed"
    reason: str
    driver: str
    disabled_tools: tuple[str, ...] | None = None
    """What the access file turns off now; nothing where it was not read."""
    left_by: str = Field(default="", exclude_if=lambda owner: not owner)
    """The driver before this one, if it died while it drove the run."""


class RunFinished(TimedEntry):
    kind: Literal["run_finished"] = "run_finished"
    result: str
    duration_ms: float = 0


class RunFailed(TimedEntry):
    kind: Literal["run_failed"] = "run_failed"
    reason: str
    message: str
    status: TaskState = "failed"
    result: str = ""
    """What was done before it failed, where there is something to give."""
    duration_ms: float = 0


type Entry = Annotated[
    RunStarted
    | RunAdopted
    | CatalogLoaded
    | SkillsRanked
    | ContextDisclosed
    | ModelCallStarted
    | ModelReplied
    | DecisionMade
    | DecodeFailed
    | StepStarted
    | StepFinished
    | StepRetried
    | FailureTold
    | StepInDoubt
    | DoubtResolved
    | TaskPlanned
    | CallPlanned
    | ChildRequested
    | ChildEnded
    | ResultChecked
    | ApprovalAsked
    | ApprovalDecided
    | InputAsked
    | InputGiven
    | ProgressVerified
    | HandedOff
    | RunPaused
    | RunResumed
    | LimitsRaised
    | UndoStarted
    | UndoFinished
    | HooksRan
    | SkillCodeAccepted
    | ModelChanged
    | RunReopened
    | RunFinished
    | RunFailed,
    Field(discriminator="kind"),
]

_ADAPTER: TypeAdapter[Entry] = TypeAdapter(Entry, config=WHEN_USED)


def parse_entry(data: bytes) -> Entry:
    """Raises pydantic's `ValidationError` on bytes that no version of Metier wrote."""
    return _ADAPTER.validator.validate_json(data)


def render_entry(entry: Entry) -> bytes:
    return entry.__pydantic_serializer__.to_json(entry)
