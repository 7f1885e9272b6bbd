"""The `plugins:` section of `agent.yaml`: which installed plugins are used, and how long they may take. Values only."""

from typing import Annotated, Literal

from pydantic import Field, field_validator
from pydantic_core import PydanticCustomError

from metier.messages import Value

type PluginWord = Literal["all", "none"]

_WORDS = frozenset({"all", "none"})


class PluginsOptions(Value):
    """Which installed plugins are used, and how long they may take."""

    enabled: PluginWord | tuple[Annotated[str, Field(min_length=1)], ...] = Field(
        default="all", description="The installed plugins that are used: a list of names, all of them, or none."
    )
    timeout_seconds: float = Field(
        default=5,
        gt=0,
        allow_inf_nan=False,
        description="How long a plugin may take to register, to start or to stop before it is left out, in seconds.",
    )

    @field_validator("enabled")
    @classmethod
    def _let_words_stand_alone(cls, enabled: str | tuple[str, ...]) -> str | tuple[str, ...]:
        words = () if isinstance(enabled, str) else [name for name in enabled if name in _WORDS]
        if words:
            raise PydanticCustomError("alone", "must be a list of names or the word '{word}' alone", {"word": words[0]})
        return enabled
