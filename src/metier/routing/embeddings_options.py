"""The `routing:` section of `agent.yaml`: what ranks skills beside their words. Never holds a key."""

from typing import Annotated

from pydantic import Field

from metier.messages import Value


class EmbeddingsOptions(Value):
    """Who turns texts into vectors; without an address skills are ranked by words alone."""

    base_url: Annotated[str, Field(pattern=r"^(https?://[^\s/?#]+\S*)?$")] = Field(
        default="",
        description=(
            "The address of an OpenAI-compatible server that makes embeddings, `/v1` included, such as "
            "`http://localhost:8080/v1`; empty: skills are ranked by words alone."
        ),
    )
    model: Annotated[str, Field(min_length=1)] = Field(
        default="text-embedding-3-small", description="The embedding model that is asked."
    )
    api_key_env: Annotated[str, Field(pattern=r"^([A-Za-z_][A-Za-z0-9_]*)?$")] = Field(
        default="", description="The environment variable that holds the key of the server; empty: it wants none."
    )
    timeout_seconds: float = Field(
        default=5,
        gt=0,
        allow_inf_nan=False,
        description="How long one request may wait for embeddings, in seconds; then it is ranked by words alone.",
    )


class RoutingOptions(Value):
    """What ranks skills beside their words."""

    embeddings: EmbeddingsOptions = Field(
        default=EmbeddingsOptions.model_construct(), description="Who turns texts into vectors; off without an address."
    )
