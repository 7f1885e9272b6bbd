"""What is known of models: windows, prices with their date, quirks. From `models.yaml`, and a file of yours over it.

Nothing here is needed to use a model: an unknown one gets cautious defaults and no price.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import date
from fnmatch import fnmatchcase
from functools import cache
from importlib.resources import files
from pathlib import Path

from pydantic import Field, ValidationError

from metier.definitions.problems import Problem
from metier.definitions.text.yaml_text import Plain, plain_value, read_yaml
from metier.errors import ConfigError
from metier.messages import Value


class LongPrompt(Value):
    """Other prices for the whole request when the prompt is longer than `above_tokens`."""

    above_tokens: int = Field(gt=0)
    input: float = Field(ge=0)
    output: float = Field(ge=0)
    cache_read: float | None = Field(default=None, ge=0)
    cache_write: float | None = Field(default=None, ge=0)


class Prices(Value):
    """US dollars for a million tokens."""

    input: float = Field(ge=0)
    output: float = Field(ge=0)
    cache_read: float | None = Field(default=None, ge=0)
    """As `input` where it is not given."""
    cache_write: float | None = Field(default=None, ge=0)
    """As `input` where it is not given."""
    long_prompt: LongPrompt | None = None
    as_of: date
    """The day on which these prices were true."""


class ModelFacts(Value):
    """What the runtime needs to know of one model."""

    window_tokens: int | None = Field(default=None, gt=0)
    """Input and output together; None where it is not known."""
    max_output_tokens: int | None = Field(default=None, gt=0)
    prices: Prices | None = None
    takes_temperature: bool = True
    takes_images: bool = True
    """It sees pictures and documents; an unknown model is believed to."""
    reasons: bool = False
    """Thinks before it answers and wants its reasoning back."""
    signs_calls: bool = False
    """Refuses a history in which a tool call has no signature."""
    wants_reasoning_text: bool = False
    """A chat-completions server that wants `reasoning_content` of earlier turns back."""


_UNKNOWN = ModelFacts()
_MAX_FOUND = 64


@dataclass(frozen=True, slots=True)
class FactBook:
    """Facts by provider and name pattern."""

    entries: Mapping[str, Mapping[str, ModelFacts]]
    _found: dict[tuple[str, str], ModelFacts] = field(default_factory=dict[tuple[str, str], ModelFacts], compare=False)
    """Models that were looked up before: every turn asks for its own several times."""

    def find(self, provider: str, model: str) -> ModelFacts:
        """The entry whose pattern is the most exact one that matches; unknown models get the defaults."""
        found = self._found.get((provider, model))
        if found is None:
            if len(self._found) >= _MAX_FOUND:  # names come from replies too: a server must not fill the memory
                self._found.clear()
            found = self._found[provider, model] = self._match(provider, model)
        return found

    def _match(self, provider: str, model: str) -> ModelFacts:
        known = self.entries.get(provider, {})
        matching = [pattern for pattern in known if fnmatchcase(model.lower(), pattern)]
        return known[max(matching, key=lambda pattern: (len(pattern), pattern))] if matching else _UNKNOWN

    def knows(self, provider: str, model: str) -> bool:
        """There is an entry for this model, not only one for every model of the provider."""
        patterns = self.entries.get(provider, {})
        return any(pattern != "*" and fnmatchcase(model.lower(), pattern) for pattern in patterns)


def load_facts(override: Path | None = None) -> FactBook:
    """The facts that come with the package, and over them those of the file `override`.

    Raises:
        ConfigError: The file cannot be read, or says something that is not a fact.
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
            known[pattern] = {**known.get(pattern, {}), **fields}
    return FactBook(_build_facts(entries, str(override)))


@cache
def _load_shipped() -> FactBook:
    """Read once: the package does not change while it runs, and a copy for every run would be a third of its memory."""
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
        raise ConfigError(f"The model facts in '{file}' cannot be used", problems=problems)
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
