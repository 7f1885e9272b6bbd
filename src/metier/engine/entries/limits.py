"""The limits of a run, and the entry that raises them. Pure values."""

from typing import Literal

from pydantic import Field

from metier.messages import Value

type Limit = Literal["max_turns", "max_cost_usd", "timeout_seconds"]


type OnLimit = Literal["fail", "park"]
"""What becomes of a run at a limit: it ends, or it waits until the limit is raised."""


class Limits(Value):
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
    max_children_per_call: int = Field(default=8, exclude_if=lambda number: number == 8)
    """How many children one call may start."""
    on_limit: OnLimit = Field(default="fail", exclude_if=lambda word: word == "fail")
    delegates_together: bool = Field(default=False, exclude_if=lambda together: not together)
    """Calls of `delegate` that stand side by side in a reply begin together. Runs of older versions have it off."""
    ends_at_first_finish: bool = Field(default=False, exclude_if=lambda ends: not ends)
    """A second `finish` in a reply does not keep the first from ending the run. Runs of older versions have it off."""


class LimitsRaised(Value):
    """A user raised what bounds the run; what is not named stays as it was."""

    kind: Literal["limits_raised"] = "limits_raised"
    max_turns: int | None = None
    max_cost_usd: float | None = None
    timeout_seconds: float | None = None
    """For the time that it is driven now."""
    raised_by: str = ""
