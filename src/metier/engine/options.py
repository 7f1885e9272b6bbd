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
        description="The agent of this workspace that runs have unless they name one; the built-in one if unset.",
    )
    profile: Profile = Field(
        default="permissive",
        description="What happens when no rule speaks: allow, ask, or ask and require a sandbox.",
    )
    shell_linux: str = Field(
        default="/bin/bash", min_length=1, description="The shell that runs commands on Linux and macOS."
    )
    shell_windows: str = Field(default="pwsh", min_length=1, description="The shell that runs commands on Windows.")
    timeout_seconds: float = Field(
        default=120,
        gt=0,
        allow_inf_nan=False,
        description="How long one step may take before it is killed, in seconds.",
    )
    max_turns: int = Field(default=8, ge=1, description="How many turns a run may take before it fails.")
    max_cost_usd: float | None = Field(
        default=None, gt=0, allow_inf_nan=False, description="What a run may cost before it stops, in US dollars."
    )
    on_limit: OnLimit = Field(
        default="fail",
        description=(
            "What becomes of a run at its limit of turns, cost or time: it fails, or it waits (parks) until the limit "
            "is raised with `agent resume`."
        ),
    )
    max_llm_retries: int = Field(
        default=3, ge=0, le=100, description="How often a request to a model is sent again after a transient failure."
    )
    retry_base_delay_seconds: float = Field(
        default=1.0, ge=0, allow_inf_nan=False, description="The wait before the first retry, in seconds; it doubles."
    )
    retry_max_delay_seconds: float = Field(
        default=8.0,
        ge=0,
        allow_inf_nan=False,
        validate_default=True,
        description="The longest wait between two retries, in seconds.",
    )
    on_step_failure: StepFailurePolicy = Field(
        default="retry_once_then_fallback_then_abort",
        description="What follows a failed step: a safe retry, the model or a fallback skill, the end of the run.",
    )
    max_delegation_depth: int = Field(
        default=4, ge=0, le=32, description="How often work may be handed on from one agent or task to the next."
    )
    delegation_share: float = Field(
        default=0.75,
        gt=0,
        le=1,
        allow_inf_nan=False,
        description="The part of what is left of turns, cost and time that delegated work may use up.",
    )
    max_children_per_call: int = Field(
        default=8, ge=1, le=64, description="How many child runs one call of `delegate` may start."
    )
    max_parallel_children: int = Field(
        default=4, ge=1, le=64, description="How many child runs of one run are driven at the same time."
    )
    approval_expiry_hours: float = Field(
        default=168,
        gt=0,
        le=8784,
        allow_inf_nan=False,
        description="Hours until an open approval expires and counts as denied.",
    )
    signal_grace_seconds: float = Field(
        default=10,
        ge=0,
        allow_inf_nan=False,
        description="How long child processes may take to end after a signal before they are killed, in seconds.",
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
