"""Entries of approvals and questions to the user. Pure values."""

from typing import Literal

from msgspec import field

from metier.engine.entries.base import TimedEntry
from metier.messages import Spent
from metier.values import JsonValue


class ApprovalAsked(TimedEntry, frozen=True, kw_only=True, tag="approval_asked"):
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
    input_schema: dict[str, JsonValue] = field(default_factory=dict)
    """What edited arguments must satisfy."""
    risk: str = ""
    """What the tool says of itself; empty where nothing is known of it."""


class ApprovalDecided(TimedEntry, frozen=True, kw_only=True, tag="approval_decided"):
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


class InputAsked(TimedEntry, frozen=True, kw_only=True, tag="input_asked"):
    request_id: str
    step_id: str
    question: str
    fields: JsonValue = None
    resumes: bool = False
    """The step itself asked: the answer does not end it, it continues with it."""
    spent: Spent | None = None


class InputGiven(TimedEntry, frozen=True, kw_only=True, tag="input_given"):
    request_id: str
    values: dict[str, JsonValue]
    answered_by: str = ""
