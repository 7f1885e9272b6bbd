"""The `shell:` section of `agent.yaml`: whether and how the shell tool runs commands. Values only."""

from typing import Annotated, Literal

from pydantic import Field

from metier.values import Value

type ShellMode = Literal["off", "allowlist", "full"]
type CwdPolicy = Literal["workspace", "any"]


class ShellOptions(Value):
    """Mode and limits of the shell tool."""

    enabled: bool = Field(default=True, description="Whether the model is offered the shell tool at all.")
    mode: ShellMode = Field(
        default="full",
        description="Which commands run: none, those that begin with one of `allowed_prefixes`, or all.",
    )
    timeout_ms: int = Field(
        default=120_000, ge=1, description="How long a command may run before it is killed, in milliseconds."
    )
    max_output_chars: int = Field(
        default=30_000, ge=1, description="How much of a command's output the model reads, in characters."
    )
    allowed_prefixes: tuple[Annotated[str, Field(min_length=1)], ...] = Field(
        default=(), description="How a command must begin in `allowlist` mode, such as `git status`."
    )
    cwd: CwdPolicy = Field(
        default="workspace", description="Where a command may be started: in the workspace, or in any folder."
    )
