"""The `skills:` section of `agent.yaml`: folders, active packages, routing and limits."""

from typing import Annotated, Literal

from pydantic import Field, field_validator
from pydantic_core import PydanticCustomError

from metier.values import Value

type EnabledWord = Literal["all", "all-untrusted", "none"]

type ZeroCandidateStrategy = Literal["fallback_all_skills", "fail_fast"]

_WORDS = frozenset({"all", "all-untrusted", "none"})


class SkillsOptions(Value):
    """Skill folders, active packages, routing and limits."""

    dir: str = Field(
        default="./skills",
        min_length=1,
        description="Folder of skills that are always active, relative to the current directory.",
    )
    enabled: EnabledWord | tuple[Annotated[str, Field(min_length=1)], ...] = Field(
        default="none",
        description="Active bundled and installed skills: a list of names, all (trusted ones), all-untrusted, or none.",
    )
    indexes: tuple[Annotated[str, Field(min_length=1)], ...] = Field(
        default=(),
        description="Skill indexes for `skills search` and `skills add NAME`: files, folders or git repositories.",
    )
    prefilter_top_k: int = Field(
        default=8,
        ge=1,
        description="Number of best-ranked skills shown to the model with descriptions, if not all fit.",
    )
    prefilter_min_score: float = Field(
        default=55,
        ge=0,
        le=100,
        allow_inf_nan=False,
        description="Minimum score of the best skill, from 0 to 100; below it a request has no candidates.",
    )
    prefilter_zero_candidate_strategy: ZeroCandidateStrategy = Field(
        default="fallback_all_skills",
        description="Behavior without a candidate: show all skills by name, or fail.",
    )
    disclosure_max_reference_bytes: int = Field(
        default=120_000, ge=0, description="Maximum size of reference text shown per skill, in bytes."
    )
    disclosure_max_reference_tokens: int = Field(
        default=4_000, ge=0, description="Maximum size of reference text shown per skill, in tokens."
    )
    inline_body_tokens: int = Field(
        default=1_500,
        ge=0,
        description="Maximum size of a skill body shown in full instead of as an outline, in tokens.",
    )
    script_timeout_seconds: float = Field(
        default=60, gt=0, allow_inf_nan=False, description="Time limit of a skill script, in seconds."
    )
    max_script_output_bytes: int = Field(
        default=1_048_576, ge=1, description="Maximum output of a skill script, in bytes; the rest is truncated."
    )

    @field_validator("enabled")
    @classmethod
    def _let_words_stand_alone(cls, enabled: str | tuple[str, ...]) -> str | tuple[str, ...]:
        words = () if isinstance(enabled, str) else [name for name in enabled if name in _WORDS]
        if words:
            raise PydanticCustomError("alone", "must be a list of names or the word '{word}' alone", {"word": words[0]})
        return enabled
