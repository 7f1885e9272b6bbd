"""The `routing:` section of `agent.yaml`: what ranks skills beside their words. Never holds a key."""

from typing import Annotated

from pydantic import Field, ValidationInfo, field_validator
from pydantic_core import PydanticCustomError

from metier.values import Value


class EmbeddingsOptions(Value):
    """What turns texts into vectors; without an address and a folder skills are ranked by words only."""

    base_url: Annotated[str, Field(pattern=r"^(https?://[^\s/?#]+\S*)?$")] = Field(
        default="",
        description=(
            "The address of an OpenAI-compatible server that makes embeddings, `/v1` included, such as "
            "`http://localhost:8080/v1`; empty: skills are ranked by words only."
        ),
    )
    folder: str = Field(
        default="",
        description=(
            "A folder with a static embedding model (`model.safetensors` and `tokenizer.json`), instead of a server; "
            "needs the extra `embeddings`."
        ),
    )
    model: Annotated[str, Field(min_length=1)] = Field(
        default="text-embedding-3-small", description="The embedding model that the server is asked for."
    )
    api_key_env: Annotated[str, Field(pattern=r"^([A-Za-z_][A-Za-z0-9_]*)?$")] = Field(
        default="", description="The environment variable that holds the key of the server; empty: it wants none."
    )
    timeout_seconds: float = Field(
        default=5,
        gt=0,
        allow_inf_nan=False,
        description="How long one request may wait for embeddings, in seconds; then it is ranked by words only.",
    )

    @property
    def is_on(self) -> bool:
        return bool(self.base_url or self.folder)

    @field_validator("folder")
    @classmethod
    def _is_one_of_two(cls, folder: str, info: ValidationInfo) -> str:
        if folder and info.data.get("base_url"):
            message = "must be empty where base_url names a server"
            raise PydanticCustomError("together", message, {"other": "base_url"})
        return folder


class RoutingOptions(Value):
    """What ranks skills beside their words."""

    embeddings: EmbeddingsOptions = Field(
        default=EmbeddingsOptions.model_construct(),
        description="What turns texts into vectors: a server, or a model in a folder; off without either.",
    )
