"""Entries by which a run goes on that a limit or a provider had ended. Part of `entries`; pure values."""

from typing import Literal

from metier.messages import Value


class LimitsRaised(Value):
    """A person raised what bounds the run; what is not named stays as it was."""

    kind: Literal["limits_raised"] = "limits_raised"
    max_turns: int | None = None
    max_cost_usd: float | None = None
    timeout_seconds: float | None = None
    """For the time that it is driven now."""
    raised_by: str = ""


class RunReopened(Value):
    """A run that failed goes on where it failed; one that a task waits for is waited for again."""

    kind: Literal["run_reopened"] = "run_reopened"
    reason: str
    reopened_by: str = ""
    step_id: str = ""
    """The step whose child run goes on, where the run itself did not fail."""
