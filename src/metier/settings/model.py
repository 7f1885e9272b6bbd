"""`Settings`: the options of every room under one roof, each section of `agent.yaml` one field. Values only."""

from typing import Annotated

from pydantic import Field, field_validator
from pydantic_core import PydanticCustomError

from metier.context.conversation import ChatOptions
from metier.engine.options import RuntimeOptions
from metier.messages import Value
from metier.providers.options import ModelOptions
from metier.routing.embeddings_options import EmbeddingsOptions, RoutingOptions
from metier.settings.sections import NotifyOptions, PluginsOptions, ServerOptions, WorkerOptions
from metier.skills.options import SkillsOptions
from metier.store.backend import StoreOptions
from metier.telemetry.options import LoggingOptions
from metier.tools.hooks.definition import read_hooks_text
from metier.tools.mcp.options import McpOptions
from metier.tools.process.sandbox.options import SandboxOptions
from metier.tools.shell.options import ShellOptions
from metier.tools.web.options import WebSearchOptions

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
