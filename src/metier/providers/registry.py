"""The built-in providers. Only this module imports them, and only the one in use.

To add a provider, write a module with `open_provider(connection)` and add an entry here.
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
    OpenAIOptions,
    find_key_variable,
)


class Registration(Struct, frozen=True, kw_only=True):
    """A provider's module and its environment variables."""

    module: str
    """Has `open_provider(connection: Connection) -> Provider`."""
    keys: tuple[str, ...] = ()
    """Environment variables for the key. The first one that is set wins. Empty if no key is needed."""
    base_url_variable: str = ""
    """Environment variable for another address."""
    header_variables: Mapping[str, str] = field(default_factory=dict[str, str])
    """Headers by the environment variable that holds their value."""
    key_is_optional_elsewhere: bool = False
    """True if servers at other addresses may work without a key."""


BUILT_IN: Mapping[str, Registration] = {
    "anthropic": Registration(
        module="metier.providers.anthropic",
        keys=KEY_VARIABLES["anthropic"],
        base_url_variable=BASE_URL_VARIABLES["anthropic"],
    ),
    "gemini": Registration(
        module="metier.providers.gemini",
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
"""The provider that delegates the task to a remote agent. Its models are the names of these agents."""


class ProviderChoice(Struct, frozen=True, kw_only=True):
    """A provider and its connection settings."""

    name: str
    base_url: str = ""
    api: ApiStyle = "auto"
    key_variable: str = ""
    """The environment variable for the key, if the settings name one."""


def choose_provider(options: ModelOptions, name: str = "") -> ProviderChoice:
    """Return a provider, by default that of the settings, with its connection settings."""
    wanted = name or options.provider
    providers = options.providers
    sections = {"anthropic": providers.anthropic, "gemini": providers.gemini, "openai": providers.openai}
    found = sections.get(wanted)
    if found is None:
        return ProviderChoice(name=wanted)
    api = found.api if isinstance(found, OpenAIOptions) else "auto"
    return ProviderChoice(name=wanted, base_url=found.base_url or "", key_variable=found.api_key_env, api=api)


def enforces_schema(choice: ProviderChoice, environment: Mapping[str, str]) -> bool:
    """Return True if the vendor accepts the schema of a result together with tools."""
    if choice.name != "openai":
        return choice.name in BUILT_IN
    # OpenAI itself does; compatible servers differ.
    return not get_base_url(choice, environment)


def get_base_url(choice: ProviderChoice, environment: Mapping[str, str]) -> str:
    """Return the configured address; empty means the vendor's own."""
    return choice.base_url or environment.get(BASE_URL_VARIABLES.get(choice.name, ""), "")


def open_provider(choice: ProviderChoice, facts: FactBook, *, environment: Mapping[str, str]) -> Provider:
    """Check the configuration, then import the provider.

    Raises:
        UsageError: The provider is unknown or `offline`, or the base URL is invalid.
        MissingKey: The environment holds no key.
    """
    if choice.name == OFFLINE:
        raise UsageError(
            f"Provider {OFFLINE!r} has no connection",
            hint="Build it from the skills of the run with `metier.providers.offline.provider.build_offline`",
        )
    registration = get_registration(choice.name)
    key = get_key(choice, environment)
    base_url = choice.base_url or environment.get(registration.base_url_variable, "")
    check_base_url(base_url)
    module = importlib.import_module(registration.module)
    # The registration promises a function of this type.
    build = cast("Callable[[Connection], Provider]", module.open_provider)
    variables = registration.header_variables.items()
    headers = {header: value for variable, header in variables if (value := environment.get(variable, "").strip())}
    connection = Connection(facts=facts, key=key, base_url=base_url, api=choice.api, headers=headers)
    return build(connection)


def get_registration(name: str) -> Registration:
    registration = BUILT_IN.get(name)
    if registration is None:
        known = ", ".join(f"`{each}`" for each in sorted({*BUILT_IN, OFFLINE}))
        raise UsageError(f"Unknown provider {name!r}", hint=f"Use one of {known}")
    return registration


def get_key(choice: ProviderChoice, environment: Mapping[str, str]) -> str:
    """Return the key, or an empty string if none is needed. Raises `UsageError`, `MissingKey`."""
    registration = get_registration(choice.name)
    own = choice.key_variable
    if (variable := find_key_variable(registration.keys, environment, configured=own)) is not None:
        return environment[variable].strip()
    elsewhere = choice.base_url or environment.get(registration.base_url_variable, "")
    if not (own or registration.keys) or (registration.key_is_optional_elsewhere and elsewhere):
        return ""
    hint = f"Set {own or registration.keys[0]} in the environment"
    if registration.key_is_optional_elsewhere:
        hint += f", or model.providers.{choice.name}.base_url to your own server"
    raise MissingKey(f"Provider {choice.name!r} has no API key", hint=hint)


def check_base_url(base_url: str) -> None:
    """Raise `UsageError` for an invalid address. An empty one means the vendor's own."""
    try:
        parts = urlsplit(base_url)
        # `port` raises `ValueError` for a number out of range.
        usable = parts.scheme in {"http", "https"} and bool(parts.hostname) and parts.port != 0
    except ValueError:
        usable = False
    if base_url and not usable:
        raise UsageError(f"Base URL {base_url!r} is invalid", hint="Write it like `http://localhost:8080/v1`")
