"""Model names: provider selection, and allowed models."""

import pytest

from metier.errors import UsageError
from metier.providers.model_names import check_fallbacks, parse_model_name, qualify_model_name


@pytest.mark.parametrize(
    ("name", "parts"),
    [
        ("gemini/gemini-2.5-flash", ("gemini", "gemini-2.5-flash")),
        ("claude-haiku-4-5", ("anthropic", "claude-haiku-4-5")),
        ("meta-llama/Llama-3", ("anthropic", "meta-llama/Llama-3")),
        ("openai/meta-llama/Llama-3", ("openai", "meta-llama/Llama-3")),
        ("openai/anthropic/claude-x", ("openai", "anthropic/claude-x")),
        ("a2a/reviewer", ("a2a", "reviewer")),
        ("plugin/echo/small", ("plugin/echo", "small")),
        ("plugin/small", ("anthropic", "plugin/small")),
        ("offline/x", ("anthropic", "offline/x")),
        ("gemini/", ("anthropic", "gemini/")),
        ("/gemini", ("anthropic", "/gemini")),
    ],
)
def test_a_known_provider_prefix_selects_the_provider(name: str, parts: tuple[str, str]) -> None:
    assert parse_model_name(name, provider="anthropic") == parts


@pytest.mark.parametrize("name", ["m", "meta-llama/Llama-3", "anthropic/claude-x", "openai/gpt-oss-20b"])
@pytest.mark.parametrize("provider", ["anthropic", "gemini", "openai", "plugin/echo"])
def test_a_name_with_its_provider_survives_a_round_trip(name: str, provider: str) -> None:
    parsed = parse_model_name(qualify_model_name(name, provider=provider), provider="a2a")

    assert parsed == (provider, name.removeprefix("anthropic/") if provider == "anthropic" else name)


def test_fallback_outside_the_allowed_models_is_refused() -> None:
    check_fallbacks(["gemini/a", "b"], ["a", "b"], provider="anthropic")
    check_fallbacks(["anything"], [], provider="anthropic")

    for name in ("gemini/c", "meta-llama/a", "openai/b"):
        with pytest.raises(UsageError):
            check_fallbacks([name], ["a", "anthropic/b"], provider="anthropic")
