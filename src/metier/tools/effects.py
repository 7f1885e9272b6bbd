"""Risk of tools, and the consequence of repeating a call. Two fixed sets of words."""

from typing import Literal

type Risk = Literal["low", "medium", "high"]

type Effect = Literal["read", "idempotent", "keyed", "opaque"]
"""Consequence of repeating a call after a crash: none, the same effect, the same effect under one key, or unknown."""

REPEATABLE: frozenset[Effect] = frozenset({"read", "idempotent", "keyed"})
"""Effects of calls that may be made again without asking a user."""
