"""Entries of a turn with the model: request, reply and decision. Pure values."""

from typing import Annotated, Literal

from metier.context.trimming import Trim
from metier.decisions import ModelDecision
from metier.engine.entries.base import JournalEntry, TimedEntry
from metier.messages import ModelReply
from metier.values import OmitDefault, StoredValue


class ModelCallStarted(TimedEntry, frozen=True, kw_only=True, tag="model_call_started"):
    """The intent to send a request."""

    turn: int
    request_hash: str
    prefix_hash: str
    estimated_tokens: int
    counted_tokens: int | None = None
    """The provider's count, if it was asked because the estimate was close to the limit."""
    repair: bool = False
    # Recorded in each turn: the file may change during the run, and a replay does not read it.
    disabled_tools: tuple[str, ...] = ()
    """Tools that the access file disabled in this turn."""
    trims: tuple[Trim, ...] = ()
    """Content that this and later requests omit to fit the budget."""
    prompt_limit: Annotated[int | None, OmitDefault()] = None
    """Maximum prompt tokens from here on, because the provider rejected a larger prompt."""
    is_json: bool | None = None
    """True if the decision was requested in JSON instead of tool calls; in older journals the settings have it."""
    server_address: Annotated[str, OmitDefault()] = ""
    """Host of the provider's server; empty if nothing is sent, and in journals of older versions."""
    server_port: Annotated[int, OmitDefault()] = 0
    """0 for the default port."""


class ModelReplied(TimedEntry, frozen=True, kw_only=True, tag="model_replied"):
    """A reply, recorded before it is decoded: a paid reply is never requested again."""

    turn: int
    reply: ModelReply
    cost_usd: float = 0.0
    attempts: int = 1
    latency_ms: float = 0.0


class Rejection(StoredValue, frozen=True, kw_only=True):
    """A call that is answered with a message instead of being run."""

    call_id: str
    tool: str
    code: str
    message: str
    text: str = ""
    """The text for the model if it differs from the message."""


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
    """True if the model gets one chance to correct it."""


class ProgressVerified(JournalEntry, frozen=True, kw_only=True, tag="progress_verified"):
    following: Literal["DISCLOSE_CONTEXT_STAGE", "CALL_LLM", "HANDOFF_OR_FINISH"]
    reason: str = ""
