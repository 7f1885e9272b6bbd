"""Settings sections of the tools: `shell:`, `sandbox:`, `web_search:` and `mcp:` in `agent.yaml`. Values only."""

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


BRAVE = "https://api.search.brave.com/res/v1/web/search"


class WebSearchOptions(Value):
    """Search engine for `WebSearch`; without one there is no such tool."""

    backend: Literal["off", "searxng", "brave", "mcp"] = Field(
        default="off",
        description=(
            "What answers: a SearXNG server, Brave or a server with the same answers, a tool of an MCP server, or off: "
            "no such tool."
        ),
    )
    mcp_tool: str = Field(
        default="",
        description="The tool of an accepted MCP server that searches, as server/tool; needed for mcp.",
    )
    url: str = Field(
        default="",
        description="The address of the search endpoint; needed for searxng, such as http://127.0.0.1:8888/search.",
    )
    api_key_env: Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")] = Field(
        default="BRAVE_API_KEY", description="The environment variable that holds the key of brave."
    )
    max_results: int = Field(default=8, ge=1, le=20, description="How many results the model gets at most.")

    @property
    def endpoint(self) -> str:
        """Empty where nothing is configured."""
        if self.backend in ("off", "mcp"):
            return ""
        return self.url or (BRAVE if self.backend == "brave" else "")


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
