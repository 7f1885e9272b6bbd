"""Entries of a turn with the model: request, reply and decision. Pure values."""

from typing import Annotated, Literal

from metier.context.trimming import Trim
from metier.decisions import ModelDecision
from metier.engine.entries.base import JournalEntry, TimedEntry
from metier.messages import ModelReply
from metier.values import OmitDefault, StoredValue


class ModelCallStarted(TimedEntry, frozen=True, kw_only=True, tag="model_call_started"):
    """The intent: a request is about to be sent."""

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
    prompt_limit: Annotated[int | None, OmitDefault()] = None
    """The size in tokens that prompts have from here on, because the provider found a larger one too long."""
    is_json: bool | None = None
    """The decision was asked for in JSON, not by tool calls; in older journals the settings say it."""


class ModelReplied(TimedEntry, frozen=True, kw_only=True, tag="model_replied"):
    """Recorded before it is decoded: a reply that was paid for is never asked for again."""

    turn: int
    reply: ModelReply
    cost_usd: float = 0.0
    attempts: int = 1
    latency_ms: float = 0


class Rejection(StoredValue, frozen=True, kw_only=True):
    """A call that is answered with a sentence instead of being run."""

    call_id: str
    tool: str
    code: str
    message: str
    text: str = ""
    """What the model reads, where that is not the message."""


class DecisionMade(JournalEntry, frozen=True, kw_only=True, tag="decision_made"):
    turn: int
    decision: ModelDecision
    path: Literal["native", "json", "repaired", "text", "offline"]
    rejected: tuple[Rejection, ...] = ()


class DecodeFailed(JournalEntry, frozen=True, kw_only=True, tag="decode_failed"):
    turn: int
    reason: str
    message: str
    repair: bool
    """The model is told, once."""


class ProgressVerified(JournalEntry, frozen=True, kw_only=True, tag="progress_verified"):
    following: Literal["DISCLOSE_CONTEXT_STAGE", "CALL_LLM", "HANDOFF_OR_FINISH"]
    reason: str = ""
