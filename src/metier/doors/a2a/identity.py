"""Which run an A2A task is, and to whom it belongs: ids that follow from the caller and its message. Pure.

A peer sees the tasks that it sent to an agent itself, and no other run of the workspace: their ids say so.
"""

import hashlib

from metier.dataclass import dataclass

PREFIX = "a2a-"
"""How the ids of runs begin that came through this door."""
_CALLER_DIGITS, _TASK_DIGITS = 12, 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Caller:
    """Who calls, and which agent it calls."""

    user: str
    agent: str = ""
    """Empty for the agent of the settings."""
    trace_parent: str = ""
    base_url: str = ""
    """Under which address the caller reaches the server."""

    @property
    def prefix(self) -> str:
        """Of the ids of every task that this caller gave to this agent."""
        return f"{PREFIX}{_digest(f'{self.user}/{self.agent}')[:_CALLER_DIGITS]}"

    def name_task(self, message_id: str) -> str:
        """The same message sent again names the same run: there is never a second one."""
        return f"{self.prefix}{_digest(message_id)[:_TASK_DIGITS]}"

    def name_context(self, context_id: str) -> str:
        """A conversation of this caller, which no chat of the workspace can have the name of."""
        return f"{self.prefix}/{context_id}"


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "replace")).hexdigest()
