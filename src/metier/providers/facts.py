"""Model facts (windows, dated prices, quirks) from `models.yaml` and the user's own file, and the cost of replies.

No model depends on its facts: an unknown one gets cautious defaults and no price.
"""

from collections.abc import Mapping
from datetime import date
from fnmatch import fnmatchcase
from functools import cache
from importlib.resources import files
from pathlib import Path

from msgspec import Struct
from pydantic import Field, ValidationError

from metier.definitions.problems import Problem
from metier.definitions.text.yaml_text import Plain, plain_value, read_yaml
from metier.errors import ConfigError
from metier.messages import ModelReply, Usage
from metier.values import Value


class Rates(Value):
    """US dollars per million tokens."""

    input: float = Field(ge=0)
    output: float = Field(ge=0)
    cache_read: float | None = Field(default=None, ge=0)
    """Defaults to `input`."""
    cache_write: float | None = Field(default=None, ge=0)
    """Defaults to `input`."""


class LongPrompt(Rates):
    """Prices of the whole request when the prompt is longer than `above_tokens`."""

    above_tokens: int = Field(gt=0)


class Prices(Rates):
    long_prompt: LongPrompt | None = None
    as_of: date
    """The day on which these prices were checked."""


class ModelFacts(Value):
    """Facts about one model."""

    window_tokens: int | None = Field(default=None, gt=0)
    """Input and output together; None if unknown."""
    max_output_tokens: int | None = Field(default=None, gt=0)
    prices: Prices | None = None
    takes_temperature: bool = True
    takes_images: bool = True
    """It accepts images and documents; assumed for unknown models."""
    reasons: bool = False
    """It reasons before it answers, and later requests must repeat that reasoning."""
    signs_calls: bool = False
    """It rejects histories with unsigned tool calls."""
    wants_reasoning_text: bool = False
    """A chat-completions server whose requests must repeat the `reasoning_content` of earlier turns."""


_UNKNOWN = ModelFacts()


class FactBook(Struct, frozen=True):
    """Facts by provider and name pattern."""

    entries: Mapping[str, Mapping[str, ModelFacts]]

    def get(self, provider: str, model: str) -> ModelFacts:
        """Return the entry with the longest matching pattern; unknown models get the defaults."""
        known = self.entries.get(provider, {})
        matching = [pattern for pattern in known if fnmatchcase(model.lower(), pattern)]
        return known[max(matching, key=lambda pattern: (len(pattern), pattern))] if matching else _UNKNOWN

    def knows(self, provider: str, model: str) -> bool:
        """Return True if there is an entry for this model, apart from one for all models of the provider."""
        patterns = self.entries.get(provider, {})
        return any(pattern != "*" and fnmatchcase(model.lower(), pattern) for pattern in patterns)


def load_facts(override: Path | None = None) -> FactBook:
    """Load the facts of the package, overridden by those of the file `override`.

    Raises:
        ConfigError: The file cannot be read or is invalid.
    """
    if override is None:
        return _load_shipped()
    entries = _parse_entries(_read_shipped(), "models.yaml")
    try:
        text = override.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(
            f"Cannot read the model facts in '{override}'", hint="Check model.facts_file in agent.yaml"
        ) from error
    for provider, models in _parse_entries(text, str(override)).items():
        known = entries.setdefault(provider, {})
        for pattern, fields in models.items():
            # Field by field: a file that only overrides a price must not lose the window.
            known[pattern] = {**known.get(pattern, {}), **fields}
    return FactBook(_build_facts(entries, str(override)))


@cache
def _load_shipped() -> FactBook:
    # Shared by all runs of a process: a copy would be a third of a run's memory.
    return FactBook(_build_facts(_parse_entries(_read_shipped(), "models.yaml"), "models.yaml"))


def _read_shipped() -> str:
    return files("metier.providers").joinpath("models.yaml").read_text(encoding="utf-8")


def _parse_entries(text: str, file: str) -> dict[str, dict[str, dict[str, Plain]]]:
    document = read_yaml(text, file=file)
    if document.problems:
        raise ConfigError(f"The model facts in '{file}' are not valid YAML", problems=document.problems)
    root = plain_value(document.root) if document.root is not None else {}
    entries: dict[str, dict[str, dict[str, Plain]]] = {}
    for provider, models in _mapping(root, file, "the file").items():
        known = entries.setdefault(provider, {})
        for pattern, fields in _mapping(models, file, provider).items():
            known[pattern.lower()] = _mapping(fields, file, pattern)
    return entries


def _mapping(value: Plain, file: str, where: str) -> dict[str, Plain]:
    if not isinstance(value, dict):
        raise ConfigError(f"{where!r} in '{file}' is not a mapping", hint="Write provider, then model name, then facts")
    return value


def _build_facts(entries: Mapping[str, Mapping[str, dict[str, Plain]]], file: str) -> dict[str, dict[str, ModelFacts]]:
    problems: list[Problem] = []
    book: dict[str, dict[str, ModelFacts]] = {}
    for provider, models in entries.items():
        book[provider] = {}
        for pattern, fields in models.items():
            try:
                book[provider][pattern] = ModelFacts.model_validate(fields)
            except ValidationError as error:
                problems.extend(_describe(error, file, f"{provider}.{pattern}"))
    if problems:
        raise ConfigError(f"The model facts in '{file}' are invalid", problems=problems)
    return book


def _describe(error: ValidationError, file: str, where: str) -> list[Problem]:
    return [
        Problem(
            severity="error",
            code="model_fact_invalid",
            message=f"{where}.{'.'.join(map(str, item['loc']))}: {item['msg']}",
            file=file,
        )
        for item in error.errors(include_url=False, include_context=False)
    ]


_MILLION = 1_000_000


def cost_usd(usage: Usage, facts: ModelFacts) -> float | None:
    """Return the cost in US dollars, or None without known prices: unknown doesn't mean free."""
    if facts.prices is None:
        return None
    long = facts.prices.long_prompt
    # Vendors charge the higher price for the whole request, not only for the tokens above the limit.
    rates: Rates = long if long is not None and usage.input_tokens > long.above_tokens else facts.prices
    plain = usage.input_tokens - usage.cache_read_tokens - usage.cache_write_tokens
    total = (
        max(plain, 0) * rates.input
        + usage.cache_read_tokens * _default_price(rates.cache_read, rates.input)
        + usage.cache_write_tokens * _default_price(rates.cache_write, rates.input)
        + usage.output_tokens * rates.output
    )
    return total / _MILLION


def reply_cost(reply: ModelReply, *, requested: str, facts: FactBook) -> float:
    """Return the cost of a reply in US dollars; 0 without known prices."""
    # Gateways rename models, so a reply's own name may be unknown when the requested one isn't.
    costs = (cost_usd(reply.usage, facts.get(reply.provider, name)) for name in (reply.model, requested))
    return next((cost for cost in costs if cost is not None), 0.0)


def _default_price(price: float | None, default: float) -> float:
    return default if price is None else price


def find_cost(cost: float, *, tokens: int) -> float | None:
    """Return a run's cost so far, or None if it used tokens without known prices."""
    return None if tokens and not cost else round(cost, 6)
