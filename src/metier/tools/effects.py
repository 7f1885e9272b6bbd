"""How much harm a tool can do, and what repeating a call of it means. Two fixed sets of words."""

from typing import Literal

type Risk = Literal["low", "medium", "high"]

type Effect = Literal["read", "idempotent", "keyed", "opaque"]
"""What may happen when a call is repeated after a crash: nothing, the same, the same under one key, or who knows."""

REPEATABLE: frozenset[Effect] = frozenset({"read", "idempotent", "keyed"})
"""Effects of calls that may be made again without asking a user."""
