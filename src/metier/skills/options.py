"""The `skills:` section of `agent.yaml`: where skills lie, which are enabled, how much of them is shown."""

from typing import Annotated, Literal

from pydantic import Field, field_validator
from pydantic_core import PydanticCustomError

from metier.values import Value

type EnabledWord = Literal["all", "all-untrusted", "none"]

type ZeroCandidateStrategy = Literal["fallback_all_skills", "fail_fast"]

_WORDS = frozenset({"all", "all-untrusted", "none"})


class SkillsOptions(Value):
    """Where skills lie, which are enabled, how much of them is shown."""

    dir: str = Field(
        default="./skills",
        min_length=1,
        description="A folder of skills that are always in the catalog, relative to the current directory.",
    )
    enabled: EnabledWord | tuple[Annotated[str, Field(min_length=1)], ...] = Field(
        default="none",
        description="The bundled and installed skills in the catalog: a list of names, all trusted ones, all, or none.",
    )
    indexes: tuple[Annotated[str, Field(min_length=1)], ...] = Field(
        default=(),
        description="Files, folders or git repositories that list skills, for `skills search` and `skills add NAME`.",
    )
    prefilter_top_k: int = Field(
        default=8,
        ge=1,
        description="How many of the best-ranked skills the model sees with their description where not all fit.",
    )
    prefilter_min_score: float = Field(
        default=55,
        ge=0,
        le=100,
        allow_inf_nan=False,
        description="The score, from 0 to 100, that the best skill must reach for a request to have candidates.",
    )
    prefilter_zero_candidate_strategy: ZeroCandidateStrategy = Field(
        default="fallback_all_skills",
        description="What happens when no skill is a candidate: show all of them by name, or fail.",
    )
    disclosure_max_reference_bytes: int = Field(
        default=120_000, ge=0, description="How much reference text of one skill is shown at most, in bytes."
    )
    disclosure_max_reference_tokens: int = Field(
        default=4_000, ge=0, description="How much reference text of one skill is shown at most, in tokens."
    )
    inline_body_tokens: int = Field(
        default=1_500,
        ge=0,
        description="A skill whose body is no longer than this is shown whole instead of as an outline, in tokens.",
    )
    script_timeout_seconds: float = Field(
        default=60, gt=0, allow_inf_nan=False, description="How long a skill's script may run, in seconds."
    )
    max_script_output_bytes: int = Field(
        default=1_048_576, ge=1, description="How much of a script's output is kept, in bytes."
    )

    @field_validator("enabled")
    @classmethod
    def _let_words_stand_alone(cls, enabled: str | tuple[str, ...]) -> str | tuple[str, ...]:
        words = () if isinstance(enabled, str) else [name for name in enabled if name in _WORDS]
        if words:
            raise PydanticCustomError("alone", "must be a list of names or the word '{word}' alone", {"word": words[0]})
        return enabled
