"""Windows, prices and costs, and a custom file that overrides them."""

from pathlib import Path

import pytest

from metier.errors import ConfigError
from metier.messages import Usage
from metier.providers.facts import ModelFacts, cost_usd, load_facts


def test_longest_pattern_wins() -> None:
    facts = load_facts()

    assert facts.get("anthropic", "claude-opus-5").window_tokens == 1_000_000
    cheaper, dearer = facts.get("anthropic", "claude-opus-5-5").prices, facts.get("anthropic", "claude-opus-5").prices
    assert cheaper is not None
    assert dearer is not None
    assert cheaper.input < dearer.input


def test_unknown_model_has_no_price_and_no_window() -> None:
    assert load_facts().get("openai", "my-own-model") == ModelFacts()
    assert cost_usd(Usage(input_tokens=5), ModelFacts()) is None


def test_every_shipped_price_has_a_date() -> None:
    book = load_facts()
    priced = [facts for models in book.entries.values() for facts in models.values() if facts.prices is not None]

    assert len(priced) > 15
    assert {facts.prices.as_of.year for facts in priced if facts.prices is not None} == {2026}


def test_cached_tokens_have_their_own_price() -> None:
    facts = load_facts().get("anthropic", "claude-haiku-4-5-20251001")
    usage = Usage(input_tokens=1_000_000, cache_read_tokens=600_000, cache_write_tokens=100_000, output_tokens=10_000)

    assert cost_usd(usage, facts) == pytest.approx(0.3 * 1 + 0.6 * 0.1 + 0.1 * 1.25 + 0.01 * 5)


def test_long_prompt_price_applies_from_the_first_token() -> None:
    facts = load_facts().get("gemini", "gemini-2.5-pro")

    assert cost_usd(Usage(input_tokens=200_000), facts) == pytest.approx(0.2 * 1.25)
    assert cost_usd(Usage(input_tokens=200_001), facts) == pytest.approx(0.200001 * 2.5)


def test_custom_facts_file_overrides_the_shipped_facts(tmp_path: Path) -> None:
    file = tmp_path / "models.yaml"
    file.write_text(
        "openai:\n"
        "  My-Model*: {window_tokens: 8192, prices: {input: 0, output: 0, as_of: 2026-11-01}}\n"
        "anthropic:\n"
        "  claude-opus-5-5*: {max_output_tokens: 1000}\n",
        encoding="utf-8",
    )

    facts = load_facts(file)

    assert facts.get("openai", "my-model-7b").window_tokens == 8192
    assert cost_usd(Usage(input_tokens=10, output_tokens=10), facts.get("openai", "my-model-7b")) == 0
    changed = facts.get("anthropic", "claude-opus-5-5")
    assert (changed.max_output_tokens, changed.window_tokens) == (1000, 1_000_000)


@pytest.mark.parametrize(
    "text",
    [
        "openai: [1, 2]",
        "openai: {m: {window_tokens: many}}",
        "openai: {m: {prices: {input: -1, output: 1, as_of: 2026-01-01}}}",
        "openai: {m: {prices: {input: 1, output: 1}}}",
        "openai: {m: {colour: red}}",
        "openai: {",
    ],
)
def test_invalid_facts_are_rejected(tmp_path: Path, text: str) -> None:
    file = tmp_path / "models.yaml"
    file.write_text(text, encoding="utf-8")

    with pytest.raises(ConfigError) as caught:
        load_facts(file)

    assert str(file) in caught.value.message


def test_missing_facts_file_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError):
        load_facts(tmp_path / "absent.yaml")
