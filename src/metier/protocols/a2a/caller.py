"""The caller of an A2A request, and the IDs of its tasks."""

import hashlib

from msgspec import Struct

RUN_PREFIX = "a2a-"
"""The prefix of the IDs of runs started over A2A."""
_CALLER_DIGITS, _TASK_DIGITS = 12, 20


# A peer sees only the tasks that it sent to this agent itself. The prefix of their IDs enforces it.
class Caller(Struct, frozen=True, kw_only=True):
    """A caller and the agent that it calls."""

    user: str
    agent: str = ""
    """Empty for the default agent."""
    trace_parent: str = ""
    base_url: str = ""
    """The server's address as the caller sees it."""

    @property
    def prefix(self) -> str:
        """Return the ID prefix of this caller's tasks for this agent."""
        return f"{RUN_PREFIX}{_digest(f'{self.user}/{self.agent}')[:_CALLER_DIGITS]}"

    def name_task(self, message_id: str) -> str:
        """Return the run ID of a message. A repeated message gets the same ID, so it never starts a second run."""
        # Hashed, because callers choose message ids of any characters and length, and a run's id names a folder.
        return f"{self.prefix}{_digest(message_id)[:_TASK_DIGITS]}"

    def name_context(self, context_id: str) -> str:
        """Return the name of a conversation of this caller, which cannot collide with a chat of the workspace."""
        return f"{self.prefix}/{context_id}"


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "replace")).hexdigest()
