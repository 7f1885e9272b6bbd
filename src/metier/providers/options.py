"""The `model:` section of `agent.yaml`: who answers, with which model, within which limits. Never a key."""

from collections.abc import Mapping, Sequence
from typing import Annotated, Literal

from pydantic import Field, ValidationInfo, field_validator
from pydantic_core import PydanticCustomError

from metier.definitions.names import PluginName
from metier.messages import Value
from metier.providers.remote_options import A2aOptions

type ProviderName = Literal["anthropic", "gemini", "openai", "offline", "a2a"]

OFFLINE = "offline"
"""The provider without a model. It has no connection to open; it is built from the skills of a run."""


BASE_URL_VARIABLES = {
    "anthropic": "ANTHROPIC_BASE_URL",
    "gemini": "GOOGLE_GEMINI_BASE_URL",
    "openai": "OPENAI_BASE_URL",
}
"""Environment variables that may replace a vendor's address."""

KEY_VARIABLES = {
    "anthropic": ("ANTHROPIC_API_KEY",),
    "gemini": ("GEMINI_API_KEY", "GOOGLE_API_KEY"),
    "openai": ("OPENAI_API_KEY",),
}
"""Environment variables that hold a vendor's key; the first one that is set counts."""


def find_key_variable(usual: Sequence[str], environ: Mapping[str, str], *, configured: str = "") -> str | None:
    """Return the variable that holds the key. A variable that the settings name replaces the vendor's usual ones."""
    variables = (configured,) if configured and configured not in usual else usual
    return next((each for each in variables if environ.get(each, "").strip()), None)


type StructuredOutputMode = Literal["native_with_json_fallback", "native", "json"]

type ApiStyle = Literal["auto", "chat", "responses"]

type VariableName = Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")]

type BaseUrl = Annotated[str, Field(pattern=r"^https?://[^\s/?#]+\S*$")]


class AnthropicOptions(Value):
    """How Anthropic is reached."""

    api_key_env: VariableName = Field(
        default="ANTHROPIC_API_KEY",
        description="The environment variable that holds the Anthropic key; the key itself never stands in a file.",
    )
    base_url: BaseUrl | None = Field(
        default=None, description="Where requests go instead of Anthropic's own address, such as a gateway."
    )


class GeminiOptions(Value):
    """How Gemini is reached."""

    api_key_env: VariableName = Field(
        default="GEMINI_API_KEY",
        description="The environment variable that holds the Gemini key; the key itself never stands in a file.",
    )
    base_url: BaseUrl | None = Field(
        default=None, description="Where requests go instead of Google's own address, such as a gateway."
    )


class OpenAIOptions(Value):
    """How OpenAI, or any server that speaks its protocol, is reached."""

    api_key_env: VariableName = Field(
        default="OPENAI_API_KEY",
        description="The environment variable that holds the OpenAI key; servers that want no key may leave it unset.",
    )
    base_url: BaseUrl | None = Field(
        default=None,
        description="The address of an OpenAI-compatible server, `/v1` included, such as `http://localhost:8080/v1`.",
    )
    api: ApiStyle = Field(
        default="auto",
        description="The format to speak; `auto` means `responses` with OpenAI itself and `chat` elsewhere.",
    )


class ProvidersOptions(Value):
    """How each provider is reached."""

    a2a: A2aOptions = Field(default=A2aOptions(), description="Which remote agents there are.")
    anthropic: AnthropicOptions = Field(
        default=AnthropicOptions.model_construct(), description="How Anthropic is reached."
    )
    gemini: GeminiOptions = Field(default=GeminiOptions.model_construct(), description="How Gemini is reached.")
    openai: OpenAIOptions = Field(
        default=OpenAIOptions.model_construct(),
        description="How OpenAI, or any server that speaks its protocol, is reached.",
    )


class ModelOptions(Value):
    """Who answers, with which model, within which limits."""

    provider: ProviderName | PluginName = Field(
        default="anthropic",
        description=(
            "Who answers; `offline` needs no key and no network, `plugin/<name>` is one of a plugin, `a2a` the remote "
            "agent that the model names."
        ),
    )
    name: str = Field(
        default="claude-sonnet-4-5",
        min_length=1,
        description="The model, as its provider names it, or `provider/model`.",
    )
    fallback_models: tuple[Annotated[str, Field(min_length=1)], ...] = Field(
        default=(),
        description="Models to try in this order if the first cannot answer, such as `gemini/gemini-2.5-pro`.",
    )
    allowed_models: tuple[Annotated[str, Field(min_length=1)], ...] = Field(
        default=(),
        description="The only models that may be asked, fallbacks included; an empty list allows all.",
    )
    max_tokens: int = Field(default=4096, ge=1, description="The longest reply that is asked for, in tokens.")
    temperature: float | None = Field(
        default=None,
        ge=0,
        le=2,
        allow_inf_nan=False,
        description="How freely the model chooses its words, from 0 to 2; the provider's own default if unset.",
    )
    max_context_tokens: int = Field(
        default=32_000, ge=1, description="The window that a prompt and its reply share, in tokens."
    )
    response_headroom_tokens: int = Field(
        default=2_000,
        ge=0,
        validate_default=True,
        description="The part of `max_context_tokens` that no prompt may use, in tokens.",
    )
    structured_output_mode: StructuredOutputMode = Field(
        default="native_with_json_fallback",
        description="How a decision is asked for: native tool calls, one strict JSON object, or JSON where calls fail.",
    )
    timeout_seconds: float = Field(
        default=120, gt=0, allow_inf_nan=False, description="How long one request to a model may take, in seconds."
    )
    facts_file: str | None = Field(
        default=None,
        min_length=1,
        description="A YAML file with windows and prices of models, over those that come with the package.",
    )
    providers: ProvidersOptions = Field(
        default=ProvidersOptions.model_construct(), description="How each provider is reached."
    )

    @field_validator("response_headroom_tokens")
    @classmethod
    def _leave_room_for_a_prompt(cls, headroom: int, info: ValidationInfo) -> int:
        window = info.data.get("max_context_tokens")
        if isinstance(window, int) and headroom >= window:
            context = {"other": "max_context_tokens", "window": window}
            raise PydanticCustomError("together", "must be less than max_context_tokens, which is {window}", context)
        return headroom
