"""Events of a turn with the model: its prompt, request, reply and decision."""

from typing import Literal

from metier.decisions import ActionStep
from metier.events.payload import Payload
from metier.values import OwnText, StoredValue


class PromptBudgetComputed(Payload, frozen=True, kw_only=True):
    """The division of this turn's tokens, and the trimmed content."""

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


class PromptComposed(Payload, frozen=True, kw_only=True):
    """The request is ready: its size, and the hash of the part that stays the same from turn to turn."""

    event_type = "prompt_composed"
    turn: int
    messages: int
    tools: int
    bytes: int
    prefix_hash: OwnText
    request_hash: OwnText = ""


class LlmRequestMeta(StoredValue, frozen=True, kw_only=True):
    """Metadata of one request to a model."""

    provider: str
    model: str
    attempt: int = 1
    latency_ms: float | None = None
    input_tokens: int | None = None
    output_tokens: int | None = None
    cached_tokens: int | None = None
    # None without a known price: zero would say that the request was free.
    cost_usd: float | None = None


class LlmRequestSent(Payload, frozen=True, kw_only=True):
    """A request was sent."""

    event_type = "llm_request_sent"
    turn: int
    meta: LlmRequestMeta


class LlmRetryScheduled(Payload, frozen=True, kw_only=True):
    """The attempt failed with a transient error; the next one starts after the delay."""

    event_type = "llm_retry_scheduled"
    turn: int
    meta: LlmRequestMeta
    reason: str
    delay_seconds: float
    retry_after_seconds: float | None = None


class LlmResponseReceived(Payload, frozen=True, kw_only=True):
    """A complete reply arrived."""

    event_type = "llm_response_received"
    turn: int
    meta: LlmRequestMeta
    stop_reason: str
    text_summary: str = ""
    tool_calls: tuple[str, ...] = ()


class LlmRequestFailed(Payload, frozen=True, kw_only=True):
    """No reply: the error is final, or the retries are used up."""

    event_type = "llm_request_failed"
    turn: int
    meta: LlmRequestMeta
    reason: str
    message: str
    retryable: bool = False
    partial_text: str = ""
    """Received part of an interrupted reply."""


class StructuredOutputFallback(Payload, frozen=True, kw_only=True):
    """The endpoint does not support a way of requesting decisions; JSON in plain text replaces it."""

    event_type = "structured_output_fallback"
    turn: int
    provider: str
    model: str
    lacks: Literal["tools", "response_schema"]
    message: str = ""
    """The server's message; empty if known from an earlier run."""
    remembered: bool = False


class LlmDecisionDecoded(Payload, frozen=True, kw_only=True):
    """The decoded decision of a reply."""

    event_type = "llm_decision_decoded"
    turn: int
    selected_skill: str | None
    reasoning_summary: str
    required_disclosure_paths: tuple[str, ...] = ()
    planned_actions: tuple[ActionStep, ...] = ()
    path: Literal["native", "json", "repaired", "text", "offline"] = "native"


class LlmDecisionRejected(Payload, frozen=True, kw_only=True):
    """The reply is not a valid decision; the model may correct it once (`repair`), then the run ends."""

    event_type = "llm_decision_rejected"
    turn: int
    reason: str
    message: str
    repair: bool = False


class PromptLayerCut(Payload, frozen=True, kw_only=True):
    """The file of a layer exceeds its limit; its start is used."""

    event_type = "prompt_layer_cut"
    layer: str
    source: str
    left_out_characters: int


class InstructionFile(StoredValue, frozen=True, kw_only=True):
    path: str
    sha256: str
    """Hash of its bytes and of those of its imports."""
    imports: tuple[str, ...] = ()
    left_out_characters: int = 0
    trusted: bool = True
    """False for text of a folder that the user has not trusted: the model reads it fenced."""


class ProjectInstructionsLoaded(Payload, frozen=True, kw_only=True):
    """Files such as `AGENTS.md` were disclosed to the model: at the start, or when a step used files near them."""

    event_type = "project_instructions_loaded"
    files: tuple[InstructionFile, ...]
    step_id: str = ""
    """Step that used files near them; empty at the start of a run."""
    problems: tuple[str, ...] = ()
    """Omitted parts of the message, with reasons."""

    @property
    def summary(self) -> str:
        names = [file.path if file.trusted else f"{file.path} (not trusted)" for file in self.files]
        return "; ".join([", ".join(names), *self.problems])
