"""Entries of approvals, questions to the user, and messages of the user. Pure values."""

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
    """The rule that asks, and its reason."""
    expires_at: str = ""
    justification: str = ""
    """The model's own reason for the call."""
    preview: str = ""
    """The call's expected change, if its tool can show it."""
    # Compared before the approved call runs: a file that changed since must not get a change that no user saw.
    base: str = ""
    """Hash of the content that the preview was made from."""
    leads_to: tuple[str, ...] = ()
    """Real targets of its paths if links lead elsewhere: the answer covers these files."""
    # In the entry, because only a running run can ask toolsets and servers for the schemas of their tools.
    input_schema: dict[str, JsonValue] = field(default_factory=dict)
    """JSON Schema for edited arguments."""
    risk: str = ""
    """The tool's own risk level; empty if unknown."""


class ApprovalDecided(TimedEntry, frozen=True, kw_only=True, tag="approval_decided"):
    approval_id: str
    step_id: str
    decision: Literal["approved", "denied", "expired"]
    decided_by: str = ""
    reason: str = ""
    edited_arguments: dict[str, JsonValue] | None = None
    edited_base: str = ""
    """Hash of the content that the edited call would change, at the time of approval."""
    edited_leads_to: tuple[str, ...] = ()
    """Like `ApprovalAsked.leads_to`, for the edited call."""
    remember: bool = False
    """Apply the answer to the same tool until the run ends; for the shell, to the same command."""


class InputAsked(TimedEntry, frozen=True, kw_only=True, tag="input_asked"):
    request_id: str
    step_id: str
    question: str
    fields: JsonValue = None
    resumes: bool = False
    """True if the step itself asked and continues with the answer."""
    spent: Spent | None = None


class InputGiven(TimedEntry, frozen=True, kw_only=True, tag="input_given"):
    request_id: str
    values: dict[str, JsonValue]
    answered_by: str = ""


class UserMessageAdded(TimedEntry, frozen=True, kw_only=True, tag="user_message_added"):
    """A message that the user sent while the run was working. The next model request contains it."""

    message_id: str
    """Unique in the conversation, so that the message is added once."""
    text: str
    sent_by: str = ""
