"""The `routing:` section of `agent.yaml`: embeddings for skill routing. It never holds a key."""

from typing import Annotated

from pydantic import Field, ValidationInfo, field_validator
from pydantic_core import PydanticCustomError

from metier.values import Value


class EmbeddingsOptions(Value):
    """Embedding server or model. Without either, skills are only ranked by words."""

    base_url: Annotated[str, Field(pattern=r"^(https?://[^\s/?#]+\S*)?$")] = Field(
        default="",
        description=(
            "Address of an OpenAI-compatible embedding server, including `/v1`, such as `http://localhost:8080/v1`. "
            "Skills are only ranked by words if empty."
        ),
    )
    folder: str = Field(
        default="",
        description=(
            "Folder with a static embedding model (`model.safetensors` and `tokenizer.json`), instead of a server. "
            "Requires the extra `embeddings`."
        ),
    )
    model: Annotated[str, Field(min_length=1)] = Field(
        default="text-embedding-3-small", description="Embedding model of the server."
    )
    api_key_env: Annotated[str, Field(pattern=r"^([A-Za-z_][A-Za-z0-9_]*)?$")] = Field(
        default="", description="Environment variable with the server's key; empty if it needs none."
    )
    timeout_seconds: float = Field(
        default=5,
        gt=0,
        allow_inf_nan=False,
        description="Timeout of embeddings for one request, in seconds; then skills are only ranked by words.",
    )

    @property
    def is_on(self) -> bool:
        return bool(self.base_url or self.folder)

    @field_validator("folder")
    @classmethod
    def _is_one_of_two(cls, folder: str, info: ValidationInfo) -> str:
        if folder and info.data.get("base_url"):
            message = "must be empty if base_url is set"
            raise PydanticCustomError("together", message, {"other": "base_url"})
        return folder


class RoutingOptions(Value):
    """Skill routing."""

    embeddings: EmbeddingsOptions = Field(
        default=EmbeddingsOptions.model_construct(),
        description="Embedding server, or model in a folder; disabled without either.",
    )
