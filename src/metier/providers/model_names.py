"""Model names: `provider/model`, or a model of the current provider.

`parse_model_name` reads model names everywhere: settings, AGENT.md, flags, fallbacks and `/model`.
"""

from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple, get_args

from metier.definitions.names import PLUGIN
from metier.errors import UsageError
from metier.providers.options import OFFLINE, ModelOptions, ProviderName

DEFAULT_MODELS: Mapping[str, str] = {
    "anthropic": ModelOptions().name,
    "gemini": "gemini-2.5-pro",
    "openai": "gpt-6.1-terra",
}
"""Default model of each vendor."""

_ROUTED = frozenset(get_args(ProviderName.__value__)) - {OFFLINE}


class ModelName(NamedTuple):
    provider: str
    model: str

    def __str__(self) -> str:
        return f"{self.provider}/{self.model}"


def parse_model_name(name: str, *, provider: str) -> ModelName:
    """Split `provider/model`; a name without a known provider is a model of `provider`."""
    # Model names may contain slashes themselves (`meta-llama/Llama-3`).
    first, _, rest = name.partition("/")
    if f"{first}/" == PLUGIN:
        # The name of a plugin's provider has a slash itself: `plugin/<name>`.
        plugin, _, rest = rest.partition("/")
        return ModelName(f"{PLUGIN}{plugin}", rest) if rest else ModelName(provider, name)
    return ModelName(first, rest) if first in _ROUTED and rest else ModelName(provider, name)


def qualify_model_name(name: str | None, *, provider: str | None) -> str:
    """Combine a name and its provider so that `parse_model_name` returns both."""
    # A repeated provider is dropped, except for `openai`: compatible servers have models such as `openai/gpt-oss`.
    if not name or not provider or (provider != "openai" and name.startswith(f"{provider}/")):
        return name or ""
    return f"{provider}/{name}"


def is_allowed(model: ModelName, allowed: Collection[str]) -> bool:
    """Check a model against a list of `provider/model` or of names from any provider. An empty list allows all."""
    return not allowed or model.model in allowed or str(model) in allowed


def check_fallbacks(names: Sequence[str], allowed: Collection[str], *, provider: str) -> None:
    """Raise `UsageError` for a fallback model outside `allowed_models`. An empty list allows all."""
    for name in names:
        if not is_allowed(parse_model_name(name, provider=provider), allowed):
            raise UsageError(
                f"Fallback model {name!r} is not allowed", hint="Add it to allowed_models, or remove the fallback"
            )
