"""The `sandbox:` section of `agent.yaml`: what encloses programs, what they may reach and use. Values only."""

from typing import Annotated, Literal

from pydantic import Field

from metier.values import Value

type SandboxUse = Literal["auto", "off", "required"]
type SandboxNetwork = Literal["auto", "on", "off"]


class SandboxOptions(Value):
    """Sandbox of scripts, toolsets and commands, and their resource limits."""

    use: SandboxUse = Field(
        default="auto",
        description="Whether programs run in a sandbox: required in `strict`, used in `guarded` where bubblewrap "
        "works, never in `permissive`; or not at all, or required in every profile.",
    )
    network: SandboxNetwork = Field(
        default="auto",
        description="Whether programs in the sandbox reach the network: off in `strict` and on elsewhere; or as said.",
    )
    readable: tuple[Annotated[str, Field(min_length=1)], ...] = Field(
        default=(),
        description="Further paths that programs in the sandbox may read, such as `~/.rustup`; "
        "one that is hidden otherwise, such as `tests/server.key`, too.",
    )
    writable: tuple[Annotated[str, Field(min_length=1)], ...] = Field(
        default=(),
        description="Further paths that programs in the sandbox may write, such as `.git`; never the runs folder.",
    )
    cpu_seconds: int | None = Field(
        default=600, ge=1, description="How much processor time one process of a program may use, in seconds."
    )
    memory_mb: int | None = Field(
        default=4096, ge=16, description="How much memory one process of a program may have, in megabytes."
    )
    processes: int | None = Field(
        default=256, ge=1, description="How many processes a program may have at once; with more it is ended."
    )
    file_size_mb: int | None = Field(
        default=2048, ge=1, description="How large a file that a program writes may become, in megabytes."
    )
