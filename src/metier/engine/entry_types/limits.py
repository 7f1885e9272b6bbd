"""Entries by which a user lets a run continue: beyond a limit, after a provider failed, with code that changed.

Part of `entries`; pure values.
"""

from typing import Literal

from pydantic import Field

from metier.engine.entry_types.timed import TimedEntry
from metier.messages import Value
from metier.providers.options import ModelOptions

type Limit = Literal["max_turns", "max_cost_usd", "timeout_seconds"]
type OnLimit = Literal["fail", "park"]
"""What becomes of a run at a limit: it ends, or it waits until the limit is raised."""


class LimitsRaised(Value):
    """A user raised what bounds the run; what is not named stays as it was."""

    kind: Literal["limits_raised"] = "limits_raised"
    max_turns: int | None = None
    max_cost_usd: float | None = None
    timeout_seconds: float | None = None
    """For the time that it is driven now."""
    raised_by: str = ""


class RunReopened(TimedEntry):
    """A run that failed continues where it failed; one that a task waits for is waited for again."""

    kind: Literal["run_reopened"] = "run_reopened"
    reason: str
    reopened_by: str = ""
    step_id: str = ""
    """The step whose child run continues, where the run itself did not fail."""


class ModelChanged(Value):
    """A run that its provider ended continues with another provider, model, address or window."""

    kind: Literal["model_changed"] = "model_changed"
    provider: str
    model: str
    options: ModelOptions
    """The model options from here on."""
    settings: tuple[str, ...] = ()
    """Names of the settings whose values differ from before."""
    pins: dict[str, str] = Field(default_factory=dict)
    """The settings from here on, pinned like those that the run was started with."""
    changed_by: str = ""


class SkillCodeAccepted(Value):
    """The files of skills changed since the run began, and it continues with the new ones."""

    kind: Literal["skill_code_accepted"] = "skill_code_accepted"
    code: dict[str, str] = Field(default_factory=dict)
    """Pin → hash of the tree that is used from now on."""
    accepted_by: str = ""
