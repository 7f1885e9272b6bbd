"""The vocabulary of the event log: one typed payload per event. Pure values; `event_record` carries them.

Events tell people and machines what a run did. They are a projection: nothing reads them to decide what happens
next. Adding a field with a default is compatible; anything else raises `event_record.SCHEMA_VERSION`.
"""

from typing import ClassVar, Literal

from pydantic import AwareDatetime, Field, JsonValue

from metier.decisions import ActionStep, StepStatus
from metier.messages import OwnText, Value
from metier.task_state import TaskState


class Payload(Value):
    """What one kind of event says. Subclasses name their `event_type`; the class docstring is its documentation."""

    event_type: ClassVar[str]


class DisclosedFile(Value):
    path: str
    section: str = ""
    bytes: int
    tokens: int
    truncated: bool = False


class Candidate(Value):
    skill_name: str
    score: float
    reason: str = ""


class RunStarted(Payload):
    """A run began: what was asked, of whom, and what it is pinned to."""

    event_type = "run_started"
    task: str
    mode: Literal["live", "dry_run", "replay"] = "live"
    agent: str = ""
    provider: str = ""
    model: str = ""
    profile: str = ""
    sandbox: str = ""
    context_id: str = ""
    parent_run_id: str = ""
    pins: dict[str, str] = Field(default_factory=dict)
    """Definition id → content hash."""


class SkillCatalogLoaded(Payload):
    """The catalog was read: how many skills, and what could not be loaded."""

    event_type = "skill_catalog_loaded"
    skills: int
    problems: int = 0
    shadowed: tuple[str, ...] = ()
    duration_ms: float = 0


class SkillLoadFailed(Payload):
    """One skill could not be loaded, and why."""

    event_type = "skill_load_failed"
    skill_name: str
    path: str
    code: str
    reason: str
    line: int | None = None


class SkillProblemFound(Payload):
    """A problem of skills that keeps none from loading: a hidden or unknown name."""

    event_type = "skill_problem_found"
    skill_name: str = ""
    path: str = ""
    code: str
    reason: str
    line: int | None = None
    hint: str = ""


class SkillPrefilterCompleted(Payload):
    """All skills were ranked for the request; these are the candidates. `strategy` says what was done without one."""

    event_type = "skill_prefilter_completed"
    query: str
    candidates: tuple[Candidate, ...]
    considered: int
    strategy: str = ""


class SkillDisclosureLoaded(Payload):
    """A stage of disclosure put exactly these files in front of the model."""

    event_type = "skill_disclosure_loaded"
    skill_name: str
    stage: Literal[0, 1, 2, 3]
    files: tuple[DisclosedFile, ...]
    total_bytes: int
    total_tokens: int
    refused: tuple[str, ...] = ()
    """Paths that were asked for and not given, each with its reason."""


class PromptBudgetComputed(Payload):
    """How the tokens of this turn's request are divided, and what had to go."""

    event_type = "prompt_budget_computed"
    turn: int
    max_context_tokens: int
    response_headroom_tokens: int
    allocated_prompt_tokens: int
    allocated_disclosure_tokens: int
    layers: dict[str, int]
    tool_schema_tokens: int = 0
    counted_by: Literal["estimate", "provider"] = "estimate"
    trimmed: tuple[str, ...] = ()


class PromptComposed(Payload):
    """The request is ready: its size, and the hash of the part that stays the same from turn to turn."""

    event_type = "prompt_composed"
    turn: int
    messages: int
    tools: int
    bytes: int
    prefix_hash: OwnText
    request_hash: OwnText = ""


class LlmRequestMeta(Value):
    """What is known of one request to a model."""

    provider: str
    model: str
    attempt: int = 1
    latency_ms: float | None = None
    input_tokens: int | None = None
    output_tokens: int | None = None
    cached_tokens: int | None = None
    cost_usd: float | None = None


class LlmRequestSent(Payload):
    """A request went out."""

    event_type = "llm_request_sent"
    turn: int
    meta: LlmRequestMeta


class LlmRetryScheduled(Payload):
    """The attempt failed in a way that may pass; the next one starts after the delay."""

    event_type = "llm_retry_scheduled"
    turn: int
    meta: LlmRequestMeta
    reason: str
    delay_seconds: float
    retry_after_seconds: float | None = None


class LlmResponseReceived(Payload):
    """A complete reply came back."""

    event_type = "llm_response_received"
    turn: int
    meta: LlmRequestMeta
    stop_reason: str
    text_summary: str = ""
    tool_calls: tuple[str, ...] = ()


class LlmRequestFailed(Payload):
    """No reply: the error is final, or the retries are used up."""

    event_type = "llm_request_failed"
    turn: int
    meta: LlmRequestMeta
    reason: str
    message: str
    retryable: bool = False
    partial_text: str = ""
    """What had come of a reply that was interrupted."""


class StructuredOutputFallback(Payload):
    """The endpoint does not support a way of asking for decisions; JSON in plain text takes its place."""

    event_type = "structured_output_fallback"
    turn: int
    provider: str
    model: str
    lacks: Literal["tools", "response_schema"]
    message: str = ""
    """What the server said; empty where it is known from an earlier run."""
    remembered: bool = False


class LlmDecisionDecoded(Payload):
    """What the reply means."""

    event_type = "llm_decision_decoded"
    turn: int
    selected_skill: str | None
    reasoning_summary: str
    required_disclosure_paths: tuple[str, ...] = ()
    planned_actions: tuple[ActionStep, ...] = ()
    path: Literal["native", "json", "repaired", "text", "offline"] = "native"


class PlanStep(Value):
    """One line of a plan."""

    step: str
    status: Literal["pending", "in_progress", "done", "dropped"]


class PlanUpdated(Payload):
    """The model wrote down its steps, or how far they are: always the whole list."""

    event_type = "plan_updated"
    step_id: str
    steps: tuple[PlanStep, ...]
    summary: str = ""


class LlmDecisionRejected(Payload):
    """The reply is no decision; the model is told once what is wrong with it (`repair`), then the run ends."""

    event_type = "llm_decision_rejected"
    turn: int
    reason: str
    message: str
    repair: bool = False


class SkillInvocationStarted(Payload):
    """A skill is in charge from here; `digest` is of its definition, as the run is pinned to it."""

    event_type = "skill_invocation_started"
    skill_name: str
    rationale: str = ""
    digest: str = ""


class StepStarted(Payload):
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
    skill_name: str = ""


class CallRefused(Payload):
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


class SkillStepExecuted(Payload):
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


class StepRetryScheduled(Payload):
    """A step failed in a way that may pass and is tried once more."""

    event_type = "step_retry_scheduled"
    step_id: str
    retry_count: int
    reason: str
    delay_seconds: float = 0


class SkillInvocationFinished(Payload):
    """The skill handed control back."""

    event_type = "skill_invocation_finished"
    skill_name: str
    status: StepStatus
    summary: str = ""


class Handoff(Payload):
    """Control goes from one skill to the next, for this reason."""

    event_type = "handoff"
    from_skill: str
    to_skill: str
    rationale: str


class ArtifactWritten(Payload):
    """A file that belongs to the run was written."""

    event_type = "artifact_written"
    path: str
    sha256: str
    bytes: int
    media_type: str = ""
    step_id: str = ""


class ApprovalRequested(Payload):
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


class ApprovalDecided(Payload):
    """An approval was decided, or expired."""

    event_type = "approval_decided"
    approval_id: str
    decision: Literal["approved", "denied", "expired"]
    decided_by: str = ""
    reason: str = ""
    edited: bool = False


class InputRequested(Payload):
    """The run waits for an answer."""

    event_type = "input_requested"
    request_id: str
    question: str
    fields: JsonValue = None


class InputReceived(Payload):
    """The answer came."""

    event_type = "input_received"
    request_id: str
    answered_by: str = ""
    fields: tuple[str, ...] = ()


class RunPaused(Payload):
    """The run stopped where it can continue later: what it waits for, and how to continue."""

    event_type = "run_paused"
    kind: Literal[
        "approval", "input", "delegation", "signal", "in_doubt", "storage", "explicit", "step_failed", "changed_code",
        "limit",
    ]  # fmt: skip
    reason: str
    resume_with: str = ""


class RunResumed(Payload):
    """The run continues: after a pause, a restart, or a take-over."""

    event_type = "run_resumed"
    reason: str
    driver: str = ""
    at_seq: int = 0


class LimitsRaised(Payload):
    """A user raised what bounds the run; what is not named stays as it was."""

    event_type = "limits_raised"
    max_turns: int | None = None
    max_cost_usd: float | None = None
    timeout_seconds: float | None = None
    raised_by: str = ""


class RunReopened(Payload):
    """A run that a limit or a provider had ended continues where it was."""

    event_type = "run_reopened"
    reason: str
    reopened_by: str = ""
    step_id: str = ""


class PinnedDefinitionUsed(Payload):
    """A definition changed since the run began; the run continues with the bytes it is pinned to."""

    event_type = "pinned_definition_used"
    definition: str
    pinned: str


class PromptLayerCut(Payload):
    """The file of a layer is larger than its cap; its beginning is used."""

    event_type = "prompt_layer_cut"
    layer: str
    source: str
    left_out_characters: int


class McpServerReported(Payload):
    """A server of external tools was left out, started, ended, or no longer offers what was accepted."""

    event_type = "mcp_server_reported"
    server: str
    state: Literal["not_accepted", "started", "ended", "changed"]
    message: str
    tools: tuple[str, ...] = ()


class SignalReceived(Payload):
    """The process was asked to stop."""

    event_type = "signal_received"
    signal: str
    count: int = 1


class GracefulShutdownStarted(Payload):
    """No new work; children get this long before they are killed."""

    event_type = "graceful_shutdown_started"
    grace_seconds: float
    children: int = 0


class RunFinished(Payload):
    """The run reached its end."""

    event_type = "run_finished"
    status: TaskState = "completed"
    mode: Literal["live", "dry_run", "replay"] = "live"
    result_summary: str = ""
    turns: int = 0
    input_tokens: int = 0
    output_tokens: int = 0
    cost_usd: float | None = 0
    """None where a model without a known price answered."""
    duration_ms: float = 0


class RunFailed(Payload):
    """The run ended without a result: a reason for machines, a sentence for people."""

    event_type = "run_failed"
    reason: str
    message: str
    status: TaskState = "failed"
    turns: int = 0
    duration_ms: float = 0


class LogRepaired(Payload):
    """The log was opened after a crash: the last, incomplete record was cut off."""

    event_type = "log_repaired"
    dropped_bytes: int
    last_good_seq: int
