"""The limits of a run, and the entry that raises them. Pure values."""

from typing import Annotated, Literal

from metier.engine.entries.base import JournalEntry
from metier.values import OmitDefault, StoredValue

type Limit = Literal["max_turns", "max_cost_usd", "timeout_seconds"]


type OnLimit = Literal["fail", "park"]
"""What becomes of a run at a limit: it ends, or it waits until the limit is raised."""


class Limits(StoredValue, frozen=True, kw_only=True):
    """What bounds a run, pinned when it starts."""

    max_turns: int = 8
    max_cost_usd: float | None = None
    on_step_failure: Literal[
        "retry_once_then_fallback_then_abort", "fallback_then_abort", "retry_once_then_abort", "abort"
    ] = "retry_once_then_fallback_then_abort"
    max_repeated_calls: int = 3
    zero_candidates: Literal["fallback_all_skills", "fail_fast"] = "fallback_all_skills"
    """In every journal, and read by nothing: the settings that a run pins say it."""
    max_delegation_depth: int = 4
    delegation_share: float = 0.75
    """The part of what is left of the budget that a child run gets."""
    max_children_per_call: Annotated[int, OmitDefault()] = 8
    """How many children one call may start."""
    on_limit: Annotated[OnLimit, OmitDefault()] = "fail"
    delegates_together: Annotated[bool, OmitDefault()] = False
    """Calls of `delegate` that stand side by side in a reply begin together. Runs of older versions have it off."""
    ends_at_first_finish: Annotated[bool, OmitDefault()] = False
    """A second `finish` in a reply does not keep the first from ending the run. Runs of older versions have it off."""


class LimitsRaised(JournalEntry, frozen=True, kw_only=True, tag="limits_raised"):
    """A user raised what bounds the run; what is not named stays as it was."""

    max_turns: int | None = None
    max_cost_usd: float | None = None
    timeout_seconds: float | None = None
    """For the time that it is driven now."""
    raised_by: str = ""
