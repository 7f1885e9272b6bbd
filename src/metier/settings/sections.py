"""`Settings`, the model of `agent.yaml`, with the sections that have no package of their own. None holds a secret."""

from typing import Annotated, Literal

from pydantic import Field, field_validator
from pydantic_core import PydanticCustomError

from metier.context.conversation import ChatOptions
from metier.engine.options import RuntimeOptions
from metier.providers.options import ModelOptions
from metier.routing.embeddings_options import EmbeddingsOptions, RoutingOptions
from metier.skills.options import SkillsOptions
from metier.store.backend import StoreOptions
from metier.telemetry.options import LoggingOptions
from metier.tools.hooks.definition import read_hooks_text
from metier.tools.mcp.options import McpOptions
from metier.tools.process.sandbox.options import SandboxOptions
from metier.tools.shell.options import ShellOptions
from metier.tools.web.options import WebSearchOptions
from metier.values import Value

type NotifyWord = Literal["approval", "input", "ended", "budget"]

_WORDS = frozenset({"all", "none"})
_ROLE = r"(peer(\+read)?|viewer|approver(\+(edit|limits|code))*|operator)"


class NotifyOptions(Value):
    """Who is told when a user is needed or a run has ended."""

    events: tuple[Annotated[str, Field(pattern=r"^(approval|input|ended|budget)$")], ...] = Field(
        default=("approval", "input", "ended", "budget"),
        description=(
            "What is told: approval and input when a person is wanted, ended when a run has ended, budget when four "
            "fifths of max_cost_usd are spent."
        ),
    )
    webhook_url: Annotated[str, Field(pattern=r"^https?://")] | None = Field(
        default=None, description="The address that messages are posted to as JSON, signed; none if unset."
    )
    webhook_secret_env: Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")] = Field(
        default="AGENT_NOTIFY_SECRET",
        description="The environment variable that holds the secret by which messages are signed.",
    )
    command: tuple[Annotated[str, Field(min_length=1)], ...] = Field(
        default=(), description="A program with its arguments that reads each message as JSON on stdin; none if empty."
    )
    bell: bool = Field(
        default=False, description="Ring the bell of the terminal when a person is wanted or a run ended."
    )

    decider: str = Field(
        default="",
        max_length=64,
        description=(
            "The name under which a link in a message decides about an approval; that of the server's user if empty."
        ),
    )

    @property
    def channels(self) -> tuple[Literal["webhook", "command"], ...]:
        """Those through which messages leave this program."""
        return (*(("webhook",) if self.webhook_url else ()), *(("command",) if self.command else ()))


type PluginWord = Literal["all", "none"]


class PluginsOptions(Value):
    """Which installed plugins are used, and how long they may take."""

    enabled: PluginWord | tuple[Annotated[str, Field(min_length=1)], ...] = Field(
        default="all", description="The installed plugins that are used: a list of names, all of them, or none."
    )
    timeout_seconds: float = Field(
        default=5,
        gt=0,
        allow_inf_nan=False,
        description="How long a plugin may take to register, to start or to stop before it is left out, in seconds.",
    )

    @field_validator("enabled")
    @classmethod
    def _let_words_stand_alone(cls, enabled: str | tuple[str, ...]) -> str | tuple[str, ...]:
        words = () if isinstance(enabled, str) else [name for name in enabled if name in _WORDS]
        if words:
            raise PydanticCustomError("alone", "must be a list of names or the word '{word}' alone", {"word": words[0]})
        return enabled


type UserEntry = Annotated[str, Field(pattern=rf"^[^\s:]{{1,64}}:{_ROLE}:[0-9a-f]{{64}}$")]
"""`name:role:digest` or `name:role+grant:digest`; the digest is the SHA-256 of the user's token in hexadecimal."""


class ServerOptions(Value):
    """Where the HTTP server listens, who may use it, within which limits."""

    host: str = Field(
        default="127.0.0.1",
        min_length=1,
        description="The address that `agent serve` listens at; one that is not loopback needs allowed_hosts.",
    )
    port: int = Field(default=8321, ge=0, le=65535, description="The port of `agent serve`; 0 takes a free one.")
    allowed_hosts: tuple[Annotated[str, Field(min_length=1)], ...] = Field(
        default=(),
        description="Host names, with a port where it is not the usual one, under which browsers and programs may"
        " reach the server, beside loopback; a request that names another host is refused.",
    )
    trusted_proxies: tuple[Annotated[str, Field(min_length=1)], ...] = Field(
        default=(), description="Addresses of reverse proxies whose X-Forwarded-For and -Proto headers are believed."
    )
    root_path: Annotated[str, Field(pattern=r"^(/[A-Za-z0-9._~-]+)*$")] = Field(
        default="", description="The path under which a reverse proxy offers the server, such as /agent."
    )
    public_url: Annotated[str, Field(pattern=r"^https?://[^\s]+[^\s/]$")] | None = Field(
        default=None,
        description="The address under which people reach the server, for links in messages; the one that it listens at"
        " if unset.",
    )
    users: tuple[UserEntry, ...] = Field(
        default=(),
        description="Named users, each as name:role:digest; roles are peer, viewer, approver and operator. A grant"
        " follows the role, such as approver+edit. `agent serve --new-user` prints the entry.",
    )
    concurrency: int = Field(
        default=4, ge=0, le=1000, description="How many runs the server drives at a time; 0 leaves them to workers."
    )
    push_hosts: tuple[Annotated[str, Field(pattern=r"^[^\s/]+:\d+$")], ...] = Field(
        default=(),
        description="Receivers, each as host:port, that A2A callers may name for push notifications although they are"
        " not public or have no TLS; without them only public https addresses are taken.",
    )
    max_body_bytes: int = Field(
        default=1_048_576, ge=1024, description="The longest request body that is read, in bytes."
    )
    requests_per_minute: int = Field(
        default=1200, ge=1, description="How many requests a user may make in a minute, over all of their clients."
    )
    max_watchers: int = Field(
        default=1000, ge=1, description="How many event streams one server process holds open at a time."
    )
    session_hours: float = Field(
        default=12, gt=0, le=720, allow_inf_nan=False, description="How long a browser stays signed in, in hours."
    )


type QueueName = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_-]{0,62}$")]


class WorkerOptions(Value):
    """How workers drive runs that were left to them."""

    queue: QueueName = Field(
        default="agent",
        description="The queue that detached runs go to and that workers take runs from; one for each workspace.",
    )
    broker_url_env: Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")] = Field(
        default="CELERY_BROKER_URL",
        description="The environment variable that holds the address of the Celery broker, password included;"
        " AGENT_WORKER_BROKER_URL goes before it. Without either, workers look into the run store.",
    )
    concurrency: int = Field(default=4, ge=1, le=1000, description="How many runs one worker drives at a time.")
    lease_seconds: float = Field(
        default=15,
        ge=1,
        allow_inf_nan=False,
        description="How long a worker that is not heard of keeps a run before another takes it over, in seconds.",
    )
    turns_per_task: int = Field(
        default=20, ge=1, description="How many turns a worker takes before it hands a run back to the queue."
    )
    timeout_seconds: float = Field(
        default=3600,
        gt=0,
        allow_inf_nan=False,
        description="How long a worker may drive a run at a stretch before the run ends as `timeout`, in seconds.",
    )
    max_attempts: int = Field(
        default=5,
        ge=1,
        description="How many workers in a row may take a run without getting any further before it fails.",
    )
    max_deaths: int = Field(
        default=2,
        ge=1,
        description="How many processes in a row may die while they drive a run at the same point before it is paused.",
    )
    autostart: bool = Field(
        default=True,
        description="Whether leaving a run to workers starts one in the background, where the run store is a file of"
        " this machine, there is no broker, and none that started itself is there.",
    )
    idle_seconds: float = Field(
        default=30,
        ge=0,
        allow_inf_nan=False,
        description="How long a worker that started itself waits for more to do before it leaves, in seconds.",
    )
    sweep_seconds: float = Field(
        default=5,
        gt=0,
        allow_inf_nan=False,
        description="How often a worker looks for runs that no process drives and that no message names, in seconds.",
    )


STRUCTURED = "structured"
"""Marks a setting that files write as lists and mappings, and that is read as their JSON."""


class Settings(Value):
    """Everything that `agent.yaml`, the environment and flags can say."""

    model: ModelOptions = Field(
        default=ModelOptions.model_construct(), description="Who answers, with which model, within which limits."
    )
    runtime: RuntimeOptions = Field(
        default=RuntimeOptions.model_construct(),
        description="How freely a run acts, how long, how often it tries again.",
    )
    skills: SkillsOptions = Field(
        default=SkillsOptions.model_construct(),
        description="Where skills lie, which are enabled, how much of them is shown.",
    )
    routing: RoutingOptions = Field(
        default=RoutingOptions.model_construct(), description="What ranks skills for a request beside their words."
    )
    shell: ShellOptions = Field(
        default=ShellOptions.model_construct(), description="Whether and how the shell tool runs commands."
    )
    sandbox: SandboxOptions = Field(
        default=SandboxOptions.model_construct(),
        description="What encloses programs, and how much of the machine one may use.",
    )
    mcp: McpOptions = Field(
        default=McpOptions.model_construct(),
        description="Which external tool servers (MCP) are used, and within which limits.",
    )
    web_search: WebSearchOptions = Field(
        default=WebSearchOptions.model_construct(),
        description="Which search engine the tool `WebSearch` asks; off without one.",
    )
    hooks: Annotated[str, STRUCTURED] = Field(
        default="",
        description=(
            "Commands that run at named moments of a run, by event, as in `.agent/hooks.yaml`; "
            "`import: claude` reads those of `.claude/settings.json` too."
        ),
        json_schema_extra={"type": ["object", "string"]},
    )
    chat: ChatOptions = Field(
        default=ChatOptions.model_construct(), description="When a long conversation is summed up, and by whom."
    )
    store: StoreOptions = Field(default=StoreOptions.model_construct(), description="Which database holds the runs.")
    worker: WorkerOptions = Field(
        default=WorkerOptions.model_construct(), description="How workers drive runs that were left to them."
    )
    server: ServerOptions = Field(
        default=ServerOptions.model_construct(),
        description="Where the HTTP server listens, who may use it, within which limits.",
    )
    notify: NotifyOptions = Field(
        default=NotifyOptions.model_construct(), description="Who is told when a person is needed or a run has ended."
    )
    logging: LoggingOptions = Field(
        default=LoggingOptions.model_construct(), description="What is written down, where, and how much of it."
    )
    plugins: PluginsOptions = Field(
        default=PluginsOptions.model_construct(),
        description="Which installed plugins are used, and how long they may take.",
    )

    @property
    def embeddings(self) -> EmbeddingsOptions | None:
        """What makes embeddings; nothing where the user wants no server to be asked."""
        options = self.routing.embeddings
        return options if options.folder or self.model.provider != "offline" else None

    @field_validator("hooks")
    @classmethod
    def _read_hooks(cls, hooks: str) -> str:
        if problems := read_hooks_text(hooks, file="agent.yaml").problems:
            said = "; ".join(problem.message for problem in problems)
            raise PydanticCustomError("hooks", "cannot be used: {said}", {"said": said})
        return hooks
