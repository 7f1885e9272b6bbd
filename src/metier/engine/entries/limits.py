"""The limits of a run, and the entry that raises them. Pure values."""

from typing import Annotated, Literal

from metier.engine.entries.base import JournalEntry
from metier.values import OmitDefault, StoredValue

type Limit = Literal["max_turns", "max_cost_usd", "timeout_seconds"]


type OnLimit = Literal["fail", "park"]
"""A run's behavior at a limit: it ends, or it waits until the limit is raised."""


class Limits(StoredValue, frozen=True, kw_only=True):
    """Limits of a run, pinned when it starts."""

    max_turns: int = 8
    max_cost_usd: float | None = None
    on_step_failure: Literal[
        "retry_once_then_fallback_then_abort", "fallback_then_abort", "retry_once_then_abort", "abort"
    ] = "retry_once_then_fallback_then_abort"
    max_repeated_calls: int = 3
    zero_candidates: Literal["fallback_all_skills", "fail_fast"] = "fallback_all_skills"
    """Stored in every journal but unused: the pinned settings have it."""
    max_delegation_depth: int = 4
    delegation_share: float = 0.75
    """Fraction of the remaining budget for a child run."""
    max_children_per_call: Annotated[int, OmitDefault()] = 8
    """Maximum number of child runs per call."""
    on_limit: Annotated[OnLimit, OmitDefault()] = "fail"
    delegates_together: Annotated[bool, OmitDefault()] = False
    """True if adjacent `delegate` calls of a reply start together. Off in runs of older versions."""
    ends_at_first_finish: Annotated[bool, OmitDefault()] = False
    """True if the first of several `finish` calls ends the run. Off in runs of older versions."""


class LimitsRaised(JournalEntry, frozen=True, kw_only=True, tag="limits_raised"):
    """A user raised limits of the run; unnamed limits are unchanged."""

    max_turns: int | None = None
    max_cost_usd: float | None = None
    timeout_seconds: float | None = None
    """Timeout of the current drive."""
    raised_by: str = ""
