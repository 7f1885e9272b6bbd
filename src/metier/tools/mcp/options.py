"""The `mcp:` section of `agent.yaml`: which external tool servers are used, and within which limits. Values only."""

from typing import Annotated, Literal

from pydantic import Field

from metier.values import Value

type ServersWord = Literal["all", "none"]
type OutsideWord = Literal["auto", "all", "none"]


class McpOptions(Value):
    """MCP servers to use, and their limits."""

    file: str = Field(
        default=".agent/mcp.json",
        min_length=1,
        description="The file that defines the servers, relative to the current directory.",
    )
    servers: ServersWord | tuple[Annotated[str, Field(min_length=1)], ...] = Field(
        default="all", description="The servers of that file whose tools are offered: a list of names, all, or none."
    )
    trusted_servers: tuple[Annotated[str, Field(min_length=1)], ...] = Field(
        default=(),
        description="Servers whose claim that a tool only reads is believed: `guarded` and `strict` do not ask then.",
    )
    outside_sandbox: OutsideWord | tuple[Annotated[str, Field(min_length=1)], ...] = Field(
        default="auto",
        description=(
            "The servers that run outside of the sandbox: all of them where no sandbox is required and none where one "
            "is; or all, none, or a list of names."
        ),
    )
    start_timeout_seconds: float = Field(
        default=30, gt=0, allow_inf_nan=False, description="How long a server may take until it answers, in seconds."
    )
    call_timeout_seconds: float = Field(
        default=60, gt=0, allow_inf_nan=False, description="How long a call of a server's tool may take, in seconds."
    )
    max_message_bytes: int = Field(
        default=4_194_304,
        ge=1024,
        description="The longest message that is taken from a server, in bytes; one that sends more is ended.",
    )
