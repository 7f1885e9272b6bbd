"""`Settings`, the model of `agent.yaml`, and the sections without a package of their own. They contain no secrets."""

from typing import Annotated, Literal

from pydantic import Field, field_validator
from pydantic_core import PydanticCustomError

from metier.context.conversation import ChatOptions
from metier.engine.options import RuntimeOptions
from metier.providers.options import ModelOptions
from metier.routing.options import EmbeddingsOptions, RoutingOptions
from metier.skills.options import SkillsOptions
from metier.store.backend import StoreOptions
from metier.telemetry.options import LoggingOptions
from metier.tools.hook_definitions import read_hooks_text
from metier.tools.options import McpOptions, SandboxOptions, ShellOptions, WebSearchOptions
from metier.values import Value

type NotifyWord = Literal["approval", "input", "ended", "budget"]

_WORDS = frozenset({"all", "none"})
_ROLE = r"(peer(\+read)?|viewer|approver(\+(edit|limits|code))*|operator)"


class NotifyOptions(Value):
    """Notifications about runs that need a user or have ended."""

    events: tuple[Annotated[str, Field(pattern=r"^(approval|input|ended|budget)$")], ...] = Field(
        default=("approval", "input", "ended", "budget"),
        description=(
            "Events that send a message: approval and input if a run needs you, ended when it has ended, budget when "
            "80 % of max_cost_usd is spent."
        ),
    )
    webhook_url: Annotated[str, Field(pattern=r"^https?://")] | None = Field(
        default=None, description="URL for signed JSON messages; none if unset."
    )
    webhook_secret_env: Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")] = Field(
        default="AGENT_NOTIFY_SECRET",
        description="Environment variable with the secret that signs messages.",
    )
    command: tuple[Annotated[str, Field(min_length=1)], ...] = Field(
        default=(), description="Program with arguments that reads each message as JSON on stdin; none if empty."
    )
    bell: bool = Field(default=False, description="Ring the terminal bell when a run needs you or has ended.")

    decider: str = Field(
        default="",
        max_length=64,
        description=("Name recorded for approvals by a link in a message; that of the server's user if empty."),
    )

    @property
    def channels(self) -> tuple[Literal["webhook", "command"], ...]:
        """Channels that leave this program."""
        return (*(("webhook",) if self.webhook_url else ()), *(("command",) if self.command else ()))


type PluginWord = Literal["all", "none"]


class PluginsOptions(Value):
    """Installed plugins to use, and their time limit."""

    enabled: PluginWord | tuple[Annotated[str, Field(min_length=1)], ...] = Field(
        default="all", description="Plugins to load: a list of names, all, or none."
    )
    timeout_seconds: float = Field(
        default=5,
        gt=0,
        allow_inf_nan=False,
        description="Time limit for a plugin to register, start or stop, in seconds; after it the plugin is skipped.",
    )

    @field_validator("enabled")
    @classmethod
    def _let_words_stand_alone(cls, enabled: str | tuple[str, ...]) -> str | tuple[str, ...]:
        words = () if isinstance(enabled, str) else [name for name in enabled if name in _WORDS]
        if words:
            raise PydanticCustomError("alone", "must be a list of names or the word '{word}' alone", {"word": words[0]})
        return enabled


# A digest instead of the token: settings files are shared, and so contain no secrets.
type UserEntry = Annotated[str, Field(pattern=rf"^[^\s:]{{1,64}}:{_ROLE}:[0-9a-f]{{64}}$")]
"""`name:role:digest` or `name:role+grant:digest`, with the hexadecimal SHA-256 of the user's token."""


class ServerOptions(Value):
    """Address, users and limits of the HTTP server."""

    host: str = Field(
        default="127.0.0.1",
        min_length=1,
        description="Address for `agent serve`; other than loopback it needs allowed_hosts.",
    )
    port: int = Field(default=8321, ge=0, le=65535, description="Port for `agent serve`; 0 selects a free one.")
    allowed_hosts: tuple[Annotated[str, Field(min_length=1)], ...] = Field(
        default=(),
        description="Allowed values of the Host header in addition to loopback, with a port unless it is the default"
        " one. Other requests are rejected.",
    )
    trusted_proxies: tuple[Annotated[str, Field(min_length=1)], ...] = Field(
        default=(), description="Addresses of reverse proxies whose X-Forwarded-For and -Proto headers are trusted."
    )
    root_path: Annotated[str, Field(pattern=r"^(/[A-Za-z0-9._~-]+)*$")] = Field(
        default="", description="URL path of the server behind a reverse proxy, such as /agent."
    )
    public_url: Annotated[str, Field(pattern=r"^https?://[^\s]+[^\s/]$")] | None = Field(
        default=None,
        description="Public URL of the server, for links in messages; by default the address it listens on.",
    )
    users: tuple[UserEntry, ...] = Field(
        default=(),
        description="Users as name:role:digest; roles are peer, viewer, approver and operator. A role may have a"
        " grant, such as approver+edit. `agent serve --new-user` prints an entry.",
    )
    proxy_roles: tuple[Annotated[str, Field(pattern=r"^.+:(viewer|approver|operator)$")], ...] = Field(
        default=(),
        description="Roles of users that a reverse proxy signs in, as group:role by the header X-Forwarded-Groups. The"
        " proxy must send the value of AGENT_SERVER_PROXY_SECRET in X-Proxy-Secret.",
    )
    concurrency: int = Field(
        default=4,
        ge=0,
        le=1000,
        description="Maximum number of runs that the server executes at once; 0 leaves them to workers.",
    )
    push_hosts: tuple[Annotated[str, Field(pattern=r"^[^\s/]+:\d+$")], ...] = Field(
        default=(),
        description="Receivers of A2A push notifications, as host:port, that may be private or without TLS; all others"
        " must be public https addresses.",
    )
    max_body_bytes: int = Field(default=1_048_576, ge=1024, description="Maximum size of a request body, in bytes.")
    requests_per_minute: int = Field(default=1200, ge=1, description="Maximum number of requests per user and minute.")
    max_watchers: int = Field(
        default=1000, ge=1, description="Maximum number of open event streams per server process."
    )
    session_hours: float = Field(
        default=12, gt=0, le=720, allow_inf_nan=False, description="Lifetime of a browser session, in hours."
    )


type QueueName = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_-]{0,62}$")]


class WorkerOptions(Value):
    """Execution of detached runs by workers."""

    queue: QueueName = Field(
        default="agent",
        description="Queue of detached runs; use a different one for each workspace.",
    )
    broker_url_env: Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")] = Field(
        default="CELERY_BROKER_URL",
        description="Environment variable with the URL of the Celery broker, including its password;"
        " AGENT_WORKER_BROKER_URL overrides it. Without either, workers poll the run store.",
    )
    concurrency: int = Field(
        default=4, ge=1, le=1000, description="Maximum number of runs that a worker executes at once."
    )
    lease_seconds: float = Field(
        default=15,
        ge=1,
        allow_inf_nan=False,
        description="Time until another worker takes over the run of an unresponsive one, in seconds.",
    )
    turns_per_task: int = Field(
        default=20, ge=1, description="Number of turns after which a worker returns a run to the queue."
    )
    timeout_seconds: float = Field(
        default=3600,
        gt=0,
        allow_inf_nan=False,
        description="Time limit of a run in one worker, in seconds; after it the run ends as `timeout`.",
    )
    max_attempts: int = Field(
        default=5,
        ge=1,
        description="Consecutive attempts without progress after which a run fails.",
    )
    # One death can be an accident, such as exhausted memory. With more, one run would stop worker after worker.
    max_deaths: int = Field(
        default=2,
        ge=1,
        description="Consecutive process deaths at the same step after which a run is paused.",
    )
    autostart: bool = Field(
        default=True,
        description="Start a worker in the background for a detached run, if the run store is a local file, there is"
        " no broker, and no such worker is running.",
    )
    idle_seconds: float = Field(
        default=30,
        ge=0,
        allow_inf_nan=False,
        description="Idle time after which a background worker exits, in seconds.",
    )
    sweep_seconds: float = Field(
        default=5,
        gt=0,
        allow_inf_nan=False,
        description="Interval at which a worker checks for abandoned runs, in seconds.",
    )


STRUCTURED = "structured"
"""Marks a setting that is a list or mapping in files and is stored as JSON."""


class Settings(Value):
    """All settings of `agent.yaml`, environment and flags."""

    # `model_construct`, because an instance would build the validator of its section on import, used or not.
    model: ModelOptions = Field(default=ModelOptions.model_construct(), description="Model provider, model and limits.")
    runtime: RuntimeOptions = Field(
        default=RuntimeOptions.model_construct(),
        description="Permissions, limits and retries of runs.",
    )
    skills: SkillsOptions = Field(
        default=SkillsOptions.model_construct(),
        description="Skill folders, active skills, routing and limits.",
    )
    routing: RoutingOptions = Field(
        default=RoutingOptions.model_construct(), description="Additional signals for ranking skills."
    )
    shell: ShellOptions = Field(default=ShellOptions.model_construct(), description="The shell tool.")
    sandbox: SandboxOptions = Field(
        default=SandboxOptions.model_construct(),
        description="Sandbox and resource limits of programs.",
    )
    mcp: McpOptions = Field(
        default=McpOptions.model_construct(),
        description="External tool servers (MCP) and their limits.",
    )
    web_search: WebSearchOptions = Field(
        default=WebSearchOptions.model_construct(),
        description="Search engine of the tool `WebSearch`; disabled without one.",
    )
    hooks: Annotated[str, STRUCTURED] = Field(
        default="",
        description=(
            "Commands to run on events of a run, as in `.agent/hooks.yaml`; `import: claude` also reads "
            "`.claude/settings.json`."
        ),
        json_schema_extra={"type": ["object", "string"]},
    )
    chat: ChatOptions = Field(default=ChatOptions.model_construct(), description="Summaries of long conversations.")
    store: StoreOptions = Field(default=StoreOptions.model_construct(), description="Database of runs.")
    worker: WorkerOptions = Field(
        default=WorkerOptions.model_construct(), description="Execution of detached runs by workers."
    )
    server: ServerOptions = Field(
        default=ServerOptions.model_construct(),
        description="Address, users and limits of the HTTP server.",
    )
    notify: NotifyOptions = Field(
        default=NotifyOptions.model_construct(), description="Notifications about runs that need you or have ended."
    )
    logging: LoggingOptions = Field(
        default=LoggingOptions.model_construct(), description="Event logs: location, content and size."
    )
    plugins: PluginsOptions = Field(
        default=PluginsOptions.model_construct(),
        description="Installed plugins to load, and their time limit.",
    )

    @property
    def embeddings(self) -> EmbeddingsOptions | None:
        """The embeddings provider; None if the user wants no server."""
        options = self.routing.embeddings
        return options if options.folder or self.model.provider != "offline" else None

    @field_validator("hooks")
    @classmethod
    def _read_hooks(cls, hooks: str) -> str:
        if problems := read_hooks_text(hooks, file="agent.yaml").problems:
            said = "; ".join(problem.message for problem in problems)
            raise PydanticCustomError("hooks", "cannot be used: {said}", {"said": said})
        return hooks
