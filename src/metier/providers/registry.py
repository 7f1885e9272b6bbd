"""Which providers there are. The only place that loads their modules, and only for the provider in use.

A new provider is one file with `open_provider(connection)` and one line here.
"""

import importlib
from collections.abc import Callable, Mapping
from typing import cast
from urllib.parse import urlsplit

from msgspec import Struct, field

from metier.errors import UsageError
from metier.providers.base import Provider
from metier.providers.connection import Connection
from metier.providers.facts import FactBook
from metier.providers.failures import MissingKey
from metier.providers.options import (
    BASE_URL_VARIABLES,
    KEY_VARIABLES,
    OFFLINE,
    ApiStyle,
    ModelOptions,
    find_key_variable,
)


class Registration(Struct, frozen=True, kw_only=True):
    """Where a provider's code is and what it needs."""

    module: str
    """Has `open_provider(connection: Connection) -> Provider`."""
    keys: tuple[str, ...] = ()
    """Environment variables that may hold the key, first found wins; empty where no key is needed."""
    base_url_variable: str = ""
    """The environment variable that may name another address."""
    header_variables: Mapping[str, str] = field(default_factory=dict[str, str])
    """Headers whose value an environment variable gives, each by its variable."""
    key_is_optional_elsewhere: bool = False
    """A server at another address may want no key."""


BUILT_IN: Mapping[str, Registration] = {
    "anthropic": Registration(
        module="metier.providers.anthropic.provider",
        keys=KEY_VARIABLES["anthropic"],
        base_url_variable=BASE_URL_VARIABLES["anthropic"],
    ),
    "gemini": Registration(
        module="metier.providers.gemini.provider",
        keys=KEY_VARIABLES["gemini"],
        base_url_variable=BASE_URL_VARIABLES["gemini"],
    ),
    "openai": Registration(
        module="metier.providers.openai.provider",
        keys=KEY_VARIABLES["openai"],
        base_url_variable=BASE_URL_VARIABLES["openai"],
        header_variables={"OPENAI_ORG_ID": "OpenAI-Organization", "OPENAI_PROJECT_ID": "OpenAI-Project"},
        key_is_optional_elsewhere=True,
    ),
}


REMOTE = "a2a"
"""The provider that hands the task to a remote agent; its models are the names of such agents."""


class ProviderChoice(Struct, frozen=True, kw_only=True):
    """Which provider, and what the settings say about reaching it."""

    name: str
    base_url: str = ""
    api: ApiStyle = "auto"
    key_variable: str = ""
    """The environment variable with the key, where the settings name one."""


def choose_provider(options: ModelOptions, name: str = "") -> ProviderChoice:
    """The provider of this name, by default the one that the settings name, as they say it is reached."""
    wanted = name or options.provider
    reached = options.providers
    match wanted:
        case "anthropic":
            return _choice(wanted, reached.anthropic.base_url, reached.anthropic.api_key_env)
        case "gemini":
            return _choice(wanted, reached.gemini.base_url, reached.gemini.api_key_env)
        case "openai":
            return _choice(wanted, reached.openai.base_url, reached.openai.api_key_env, api=reached.openai.api)
        case _:
            return ProviderChoice(name=wanted)


def holds_to_schema(choice: ProviderChoice, environment: Mapping[str, str]) -> bool:
    """It takes the schema of a result together with tools; servers that only speak like OpenAI differ in this."""
    if choice.name != "openai":
        return choice.name in BUILT_IN
    return not get_base_url(choice, environment)


def get_base_url(choice: ProviderChoice, environment: Mapping[str, str]) -> str:
    """The address that replaces the vendor's own; empty if none does."""
    return choice.base_url or environment.get(BASE_URL_VARIABLES.get(choice.name, ""), "")


def open_provider(
    choice: ProviderChoice,
    facts: FactBook,
    *,
    environment: Mapping[str, str],
    registrations: Mapping[str, Registration] = BUILT_IN,
) -> Provider:
    """Check everything that can be checked without a call, then load the provider's code.

    Raises:
        UsageError: No such provider, the base URL is no address, or it is `offline`.
        MissingKey: The environment holds no key.
    """
    if choice.name == OFFLINE:
        raise UsageError(
            f"Provider {OFFLINE!r} has no connection to open",
            hint="Build it from the skills of the run with `metier.providers.offline.provider.build_offline`",
        )
    registration = get_registration(choice.name, registrations)
    key = get_key(choice, registration, environment)
    base_url = choice.base_url or environment.get(registration.base_url_variable, "")
    check_base_url(base_url)
    module = importlib.import_module(registration.module)
    # The registration promises a function of this type.
    build = cast("Callable[[Connection], Provider]", module.open_provider)
    named = registration.header_variables.items()
    headers = {header: value for variable, header in named if (value := environment.get(variable, "").strip())}
    connection = Connection(facts=facts, key=key, base_url=base_url, api=choice.api, headers=headers)
    return build(connection)


def get_registration(name: str, registrations: Mapping[str, Registration] = BUILT_IN) -> Registration:
    registration = registrations.get(name)
    if registration is None:
        known = ", ".join(f"`{each}`" for each in sorted({*registrations, OFFLINE}))
        raise UsageError(f"Provider {name!r} is not known", hint=f"Use one of {known}")
    return registration


def get_key(choice: ProviderChoice, registration: Registration, environment: Mapping[str, str]) -> str:
    """The key, or an empty text where none is needed. Raises `MissingKey` before any call is made."""
    own = choice.key_variable
    if (variable := find_key_variable(registration.keys, environment, configured=own)) is not None:
        return environment[variable].strip()
    elsewhere = choice.base_url or environment.get(registration.base_url_variable, "")
    if not (own or registration.keys) or (registration.key_is_optional_elsewhere and elsewhere):
        return ""
    hint = f"Set {own or registration.keys[0]} in the environment"
    if registration.key_is_optional_elsewhere:
        hint += f", or model.providers.{choice.name}.base_url to a server of your own"
    raise MissingKey(f"Provider {choice.name!r} has no API key", hint=hint)


def check_base_url(base_url: str) -> None:
    """Raises `UsageError` for an address that no HTTP client can use; an empty one is the vendor's own."""
    try:
        parts = urlsplit(base_url)
        usable = parts.scheme in {"http", "https"} and bool(parts.hostname) and parts.port != 0
    except ValueError:
        usable = False
    if base_url and not usable:
        raise UsageError(f"Base URL {base_url!r} is not an address", hint="Write it like `http://localhost:8080/v1`")


def _choice(name: str, base_url: str | None, key_variable: str, *, api: ApiStyle = "auto") -> ProviderChoice:
    return ProviderChoice(name=name, base_url=base_url or "", key_variable=key_variable, api=api)
