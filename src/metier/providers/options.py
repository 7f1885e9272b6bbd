"""The `model:` section of `agent.yaml`: provider, model, limits and remote agents. It never holds a key or a token."""

from collections.abc import Mapping, Sequence
from typing import Annotated, Literal

from pydantic import Field, TypeAdapter, ValidationError, ValidationInfo, field_validator
from pydantic_core import PydanticCustomError

from metier.definitions.names import PluginName
from metier.values import WHEN_USED, Value

STRUCTURED = "structured"
"""Same as `settings.model.STRUCTURED`: a mapping in the file, read as JSON text."""


class RemoteAgentOptions(Value):
    """A remote agent's address and credentials."""

    url: Annotated[str, Field(pattern=r"^https?://[^\s/?#]+\S*$")]
    token_env: Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")] = ""
    timeout_seconds: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 3600.0


_AGENTS: TypeAdapter[dict[str, RemoteAgentOptions]] = TypeAdapter(dict[str, RemoteAgentOptions], config=WHEN_USED)


class A2aOptions(Value):
    """Remote agents."""

    agents: Annotated[str, STRUCTURED] = Field(
        default="",
        description=(
            "Remote agents by name, each with its A2A `url`, the variable with its token (`token_env`), and how long "
            "it may work on one message (`timeout_seconds`); an agent uses one with `model: a2a/<name>`."
        ),
        json_schema_extra={"type": ["object", "string"]},
    )

    @field_validator("agents")
    @classmethod
    def _read_agents(cls, agents: str) -> str:
        try:
            read_agents(agents)
        except ValidationError as error:
            first = error.errors(include_input=False, include_url=False)[0]
            location = ".".join(map(str, first["loc"])) or "it"
            raise PydanticCustomError(
                "agents", "cannot be used: {problem}", {"problem": f"{location}: {first['msg']}"}
            ) from None
        return agents


def read_agents(text: str) -> dict[str, RemoteAgentOptions]:
    return _AGENTS.validate_json(text) if text.strip() else {}


type ProviderName = Literal["anthropic", "gemini", "openai", "offline", "a2a"]

OFFLINE = "offline"
"""The provider without a model. It has no connection; it is built from the skills of a run."""


BASE_URL_VARIABLES = {
    "anthropic": "ANTHROPIC_BASE_URL",
    "gemini": "GOOGLE_GEMINI_BASE_URL",
    "openai": "OPENAI_BASE_URL",
}
"""Environment variables that override a vendor's address."""

KEY_VARIABLES = {
    "anthropic": ("ANTHROPIC_API_KEY",),
    # The specific name first, because GOOGLE_API_KEY is often set for other services of Google.
    "gemini": ("GEMINI_API_KEY", "GOOGLE_API_KEY"),
    "openai": ("OPENAI_API_KEY",),
}
"""Environment variables for a vendor's key; the first one that is set is used."""


def find_key_variable(usual: Sequence[str], environ: Mapping[str, str], *, configured: str = "") -> str | None:
    """Find the variable that holds the key. A `configured` one replaces the vendor's usual ones."""
    variables = (configured,) if configured and configured not in usual else usual
    return next((each for each in variables if environ.get(each, "").strip()), None)


type StructuredOutputMode = Literal["native_with_json_fallback", "native", "json"]

type ApiStyle = Literal["auto", "chat", "responses"]

type VariableName = Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")]

type BaseUrl = Annotated[str, Field(pattern=r"^https?://[^\s/?#]+\S*$")]


class AnthropicOptions(Value):
    """Connection to Anthropic."""

    api_key_env: VariableName = Field(
        default="ANTHROPIC_API_KEY",
        description="Environment variable with the Anthropic key. Never put the key itself in a file.",
    )
    base_url: BaseUrl | None = Field(
        default=None, description="Address to use instead of Anthropic's own, such as a gateway."
    )


class GeminiOptions(Value):
    """Connection to Gemini."""

    api_key_env: VariableName = Field(
        default="GEMINI_API_KEY",
        description="Environment variable with the Gemini key. Never put the key itself in a file.",
    )
    base_url: BaseUrl | None = Field(
        default=None, description="Address to use instead of Google's own, such as a gateway."
    )


class OpenAIOptions(Value):
    """Connection to OpenAI, or to any compatible server."""

    api_key_env: VariableName = Field(
        default="OPENAI_API_KEY",
        description="Environment variable with the OpenAI key. Leave it unset for servers without keys.",
    )
    base_url: BaseUrl | None = Field(
        default=None,
        description="Address of an OpenAI-compatible server, including `/v1`, such as `http://localhost:8080/v1`.",
    )
    api: ApiStyle = Field(
        default="auto",
        description="API format; `auto` means `responses` for OpenAI itself and `chat` for other servers.",
    )


class ProvidersOptions(Value):
    """Connections to the providers."""

    a2a: A2aOptions = Field(default=A2aOptions(), description="Remote agents.")
    anthropic: AnthropicOptions = Field(
        default=AnthropicOptions.model_construct(), description="Connection to Anthropic."
    )
    gemini: GeminiOptions = Field(default=GeminiOptions.model_construct(), description="Connection to Gemini.")
    openai: OpenAIOptions = Field(
        default=OpenAIOptions.model_construct(),
        description="Connection to OpenAI, or to any compatible server.",
    )


class ModelOptions(Value):
    """Model provider, model and limits."""

    provider: ProviderName | PluginName = Field(
        default="anthropic",
        description=(
            "Model provider. `offline` needs no key and no network, `plugin/<name>` comes from a plugin, and `a2a` is "
            "the remote agent that `name` names."
        ),
    )
    name: str = Field(
        default="claude-sonnet-4-5",
        min_length=1,
        description="Model, under its provider's name for it, or `provider/model`.",
    )
    fallback_models: tuple[Annotated[str, Field(min_length=1)], ...] = Field(
        default=(),
        description="Models to try, in this order, if the first can't answer, such as `gemini/gemini-2.5-pro`.",
    )
    allowed_models: tuple[Annotated[str, Field(min_length=1)], ...] = Field(
        default=(),
        description="The only models that may be used, including fallbacks; an empty list allows all.",
    )
    max_tokens: int = Field(default=4096, ge=1, description="Maximum length of a reply, in tokens.")
    temperature: float | None = Field(
        default=None,
        ge=0,
        le=2,
        allow_inf_nan=False,
        description="Sampling temperature from 0 to 2; the provider's default if unset.",
    )
    max_context_tokens: int = Field(
        default=32_000, ge=1, description="Context window shared by a prompt and its reply, in tokens."
    )
    response_headroom_tokens: int = Field(
        default=2_000,
        ge=0,
        validate_default=True,
        description="Part of `max_context_tokens` reserved for the reply, in tokens.",
    )
    structured_output_mode: StructuredOutputMode = Field(
        default="native_with_json_fallback",
        description="Format of decisions: native tool calls, one JSON object, or JSON if tool calls are unsupported.",
    )
    timeout_seconds: float = Field(
        default=120, gt=0, allow_inf_nan=False, description="Timeout of one model request, in seconds."
    )
    facts_file: str | None = Field(
        default=None,
        min_length=1,
        description="YAML file with windows and prices of models, overriding those of the package.",
    )
    providers: ProvidersOptions = Field(
        default=ProvidersOptions.model_construct(), description="Connections to the providers."
    )

    @field_validator("response_headroom_tokens")
    @classmethod
    def _leave_room_for_a_prompt(cls, headroom: int, info: ValidationInfo) -> int:
        window = info.data.get("max_context_tokens")
        if isinstance(window, int) and headroom >= window:
            context = {"other": "max_context_tokens", "window": window}
            raise PydanticCustomError("together", "must be less than max_context_tokens, which is {window}", context)
        return headroom
