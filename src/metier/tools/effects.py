"""The risk of a tool, and the effect of repeating its calls."""

from typing import Literal

type Risk = Literal["low", "medium", "high"]

type Effect = Literal["read", "idempotent", "keyed", "opaque"]
"""The consequence of repeating a call after a crash: none, the same, the same with the same key, or unknown."""

REPEATABLE: frozenset[Effect] = frozenset({"read", "idempotent", "keyed"})
"""Effects of calls that may be repeated without asking the user."""
