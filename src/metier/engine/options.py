"""The `runtime:` section of `agent.yaml`: permissions, limits and retries of a run. Values only."""

from typing import Literal

from pydantic import Field, ValidationInfo, field_validator
from pydantic_core import PydanticCustomError

from metier.definitions.names import Profile
from metier.engine.entries.limits import OnLimit
from metier.values import Value

type StepFailurePolicy = Literal[
    "retry_once_then_fallback_then_abort", "fallback_then_abort", "retry_once_then_abort", "abort"
]


class RuntimeOptions(Value):
    """Permissions, limits and retries of a run."""

    agent: str | None = Field(
        default=None,
        min_length=1,
        description="Default agent of runs in this workspace; the built-in one if unset.",
    )
    profile: Profile = Field(
        default="permissive",
        description="Default when no rule matches: allow, ask, or ask and require a sandbox.",
    )
    shell_linux: str = Field(default="/bin/bash", min_length=1, description="Shell for commands on Linux and macOS.")
    shell_windows: str = Field(default="pwsh", min_length=1, description="Shell for commands on Windows.")
    timeout_seconds: float = Field(
        default=120,
        gt=0,
        allow_inf_nan=False,
        description="Time limit of one step, in seconds.",
    )
    max_turns: int = Field(default=8, ge=1, description="Maximum number of turns of a run.")
    max_cost_usd: float | None = Field(
        default=None, gt=0, allow_inf_nan=False, description="Maximum cost of a run, in US dollars."
    )
    on_limit: OnLimit = Field(
        default="fail",
        description=(
            "At its limit of turns, cost or time a run either fails, or parks: it waits until the limit is raised "
            "with `agent resume`."
        ),
    )
    max_llm_retries: int = Field(
        default=3, ge=0, le=100, description="Maximum number of retries of a model request after transient failures."
    )
    retry_base_delay_seconds: float = Field(
        default=1.0,
        ge=0,
        allow_inf_nan=False,
        description="Seconds before the first retry; doubles with each retry.",
    )
    retry_max_delay_seconds: float = Field(
        default=8.0,
        ge=0,
        allow_inf_nan=False,
        # The default is checked, too: the first delay may be set above it.
        validate_default=True,
        description="Maximum delay between two retries, in seconds.",
    )
    on_step_failure: StepFailurePolicy = Field(
        default="retry_once_then_fallback_then_abort",
        description="Reaction to a failed step: one safe retry, fallback to the model or another skill, abort.",
    )
    max_delegation_depth: int = Field(
        default=4, ge=0, le=32, description="Maximum depth of delegation between agents and tasks."
    )
    delegation_share: float = Field(
        default=0.75,
        gt=0,
        le=1,
        allow_inf_nan=False,
        description="Share of the remaining turns, cost and time that a child run may use.",
    )
    max_children_per_call: int = Field(
        default=8, ge=1, le=64, description="Maximum number of child runs per call of `delegate`."
    )
    max_parallel_children: int = Field(
        default=4, ge=1, le=64, description="Maximum number of concurrent child runs of a run."
    )
    approval_expiry_hours: float = Field(
        default=168,
        gt=0,
        # The hours of a leap year.
        le=8784,
        allow_inf_nan=False,
        description="Hours until an open approval expires and counts as denied.",
    )
    signal_grace_seconds: float = Field(
        default=10,
        ge=0,
        allow_inf_nan=False,
        description="Grace period of child processes after a signal before they are killed, in seconds.",
    )

    @field_validator("retry_max_delay_seconds")
    @classmethod
    def _reach_the_first_delay(cls, longest: float, info: ValidationInfo) -> float:
        first = info.data.get("retry_base_delay_seconds")
        if isinstance(first, float) and longest < first:
            context = {"other": "retry_base_delay_seconds", "first": f"{first:g}"}
            raise PydanticCustomError(
                "together", "must be at least retry_base_delay_seconds, which is {first}", context
            )
        return longest
