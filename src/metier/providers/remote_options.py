"""The remote agents that the settings name. Never a token: only the name of the variable that holds one."""

from typing import Annotated

from pydantic import Field, TypeAdapter, ValidationError, field_validator
from pydantic_core import PydanticCustomError

from metier.messages import WHEN_USED, Value

STRUCTURED = "structured"
"""As `settings.model.STRUCTURED`: files write it as a mapping, and it is read as the JSON of that."""


class RemoteAgentOptions(Value):
    """Where one remote agent is."""

    url: Annotated[str, Field(pattern=r"^https?://[^\s/?#]+\S*$")]
    token_env: Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")] = ""
    timeout_seconds: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 3600.0


_AGENTS: TypeAdapter[dict[str, RemoteAgentOptions]] = TypeAdapter(dict[str, RemoteAgentOptions], config=WHEN_USED)


class A2aOptions(Value):
    """Which remote agents there are."""

    agents: Annotated[str, STRUCTURED] = Field(
        default="",
        description=(
            "Remote agents by name, each with its A2A `url`, the variable with its token (`token_env`), and how long "
            "it may work on one message (`timeout_seconds`); an agent uses one with `model: a2a/<name>`."
        ),
        json_schema_extra={"type": ["object", "string"]},
    )

    @field_validator("agents")
    @classmethod
    def _read_agents(cls, agents: str) -> str:
        try:
            read_agents(agents)
        except ValidationError as error:
            first = error.errors(include_input=False, include_url=False)[0]
            place = ".".join(map(str, first["loc"])) or "it"
            raise PydanticCustomError(
                "agents", "cannot be used: {said}", {"said": f"{place}: {first['msg']}"}
            ) from None
        return agents


def read_agents(text: str) -> dict[str, RemoteAgentOptions]:
    return _AGENTS.validate_json(text) if text.strip() else {}
