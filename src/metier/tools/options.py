"""Settings sections of the tools: `shell:`, `sandbox:`, `web_search:` and `mcp:` in `agent.yaml`. Values only."""

from typing import Annotated, Literal

from pydantic import Field

from metier.values import Value

type ShellMode = Literal["off", "allowlist", "full"]
type CwdPolicy = Literal["workspace", "any"]


class ShellOptions(Value):
    """Mode and limits of the shell tool."""

    enabled: bool = Field(default=True, description="Offer the shell tool to models.")
    mode: ShellMode = Field(
        default="full",
        description="Commands to run: none, those that start with one of `allowed_prefixes`, or all.",
    )
    timeout_ms: int = Field(default=120_000, ge=1, description="Time limit of a command, in milliseconds.")
    max_output_chars: int = Field(
        default=30_000, ge=1, description="Maximum length of a command's output for the model, in characters."
    )
    allowed_prefixes: tuple[Annotated[str, Field(min_length=1)], ...] = Field(
        default=(), description="Required starts of commands in `allowlist` mode, such as `git status`."
    )
    cwd: CwdPolicy = Field(
        default="workspace", description="Allowed working folders of commands: those of the workspace, or any."
    )


type SandboxUse = Literal["auto", "off", "required"]
type SandboxNetwork = Literal["auto", "on", "off"]


class SandboxOptions(Value):
    """Sandbox of scripts, toolsets and commands, and their resource limits."""

    use: SandboxUse = Field(
        default="auto",
        description="Sandbox for programs. `auto`: required in `strict`, used in `guarded` if bubblewrap works, unused "
        "in `permissive`. `off`: never. `required`: in every profile.",
    )
    network: SandboxNetwork = Field(
        default="auto",
        description="Network access in the sandbox. `auto`: off in `strict`, otherwise on.",
    )
    readable: tuple[Annotated[str, Field(min_length=1)], ...] = Field(
        default=(),
        description="Additional paths that programs in the sandbox may read, such as `~/.rustup`, "
        "or a file that is otherwise hidden, such as `tests/server.key`.",
    )
    writable: tuple[Annotated[str, Field(min_length=1)], ...] = Field(
        default=(),
        description="Additional paths that programs in the sandbox may write, such as `.git`; never the runs folder.",
    )
    cpu_seconds: int | None = Field(default=600, ge=1, description="Maximum CPU time of one process, in seconds.")
    memory_mb: int | None = Field(default=4096, ge=16, description="Maximum memory of one process, in megabytes.")
    processes: int | None = Field(
        default=256, ge=1, description="Maximum number of processes of a program; if it exceeds this, it is killed."
    )
    file_size_mb: int | None = Field(
        default=2048, ge=1, description="Maximum size of a file that a program writes, in megabytes."
    )


BRAVE = "https://api.search.brave.com/res/v1/web/search"


class WebSearchOptions(Value):
    """Search engine for `WebSearch`; the tool is only offered if one is configured."""

    backend: Literal["off", "searxng", "brave", "mcp"] = Field(
        default="off",
        description="Search backend: a SearXNG server, Brave or a compatible server, an MCP tool, or off.",
    )
    mcp_tool: str = Field(
        default="",
        description="Search tool of an accepted MCP server, as server/tool; required for mcp.",
    )
    url: str = Field(
        default="",
        description="URL of the search endpoint, such as http://127.0.0.1:8888/search; required for searxng.",
    )
    api_key_env: Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")] = Field(
        default="BRAVE_API_KEY", description="Environment variable with the Brave key."
    )
    max_results: int = Field(default=8, ge=1, le=20, description="Maximum number of results.")

    @property
    def endpoint(self) -> str:
        """Return the URL to search with; empty without a backend that has one."""
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
        description="File that defines the servers, relative to the current directory.",
    )
    servers: ServersWord | tuple[Annotated[str, Field(min_length=1)], ...] = Field(
        default="all", description="Servers whose tools are offered: a list of names, all, or none."
    )
    trusted_servers: tuple[Annotated[str, Field(min_length=1)], ...] = Field(
        default=(),
        description="Servers whose read-only hints are trusted: `guarded` and `strict` don't ask about these tools.",
    )
    outside_sandbox: OutsideWord | tuple[Annotated[str, Field(min_length=1)], ...] = Field(
        default="auto",
        description=(
            "Servers that run outside the sandbox: all, none, or a list of names. `auto`: all if no sandbox is "
            "required, otherwise none."
        ),
    )
    start_timeout_seconds: float = Field(
        default=30, gt=0, allow_inf_nan=False, description="Time limit for a server to start, in seconds."
    )
    call_timeout_seconds: float = Field(
        default=60, gt=0, allow_inf_nan=False, description="Time limit of a tool call, in seconds."
    )
    max_message_bytes: int = Field(
        default=4_194_304,
        ge=1024,
        description="Maximum size of a server's message, in bytes; a server that sends more is stopped.",
    )
