"""Opening a provider: checks before any call, without loading a vendor's SDK."""

import json
import subprocess
import sys

import pytest

from metier.errors import UsageError
from metier.providers.facts import load_facts
from metier.providers.failures import MissingKey
from metier.providers.options import ModelOptions
from metier.providers.registry import BUILT_IN, ProviderChoice, choose_provider, open_provider

_LOOK = """
import json, sys
from metier.providers.facts import load_facts
from metier.providers.registry import ProviderChoice, open_provider
import metier.providers.retry, metier.testing.scripted
name = sys.argv[1]
keys = {"ANTHROPIC_API_KEY": "k", "GEMINI_API_KEY": "k", "OPENAI_API_KEY": "k"}
if name:
    open_provider(ProviderChoice(name=name), load_facts(), environment=keys)
sdks = [sdk for sdk in ("anthropic", "google.genai", "openai") if sdk in sys.modules]
print(json.dumps({"sdks": sdks, "http": "httpx2" in sys.modules}))
"""


@pytest.mark.parametrize("name", ["", *BUILT_IN])
def test_no_sdk_of_a_vendor_is_imported(name: str) -> None:
    done = subprocess.run([sys.executable, "-c", _LOOK, name], capture_output=True, text=True, check=True)

    assert json.loads(done.stdout) == {"sdks": [], "http": bool(name)}


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("anthropic", "Set ANTHROPIC_API_KEY in the environment"),
        ("gemini", "Set GEMINI_API_KEY in the environment"),
        (
            "openai",
            "Set OPENAI_API_KEY in the environment, or model.providers.openai.base_url to your own server",
        ),
    ],
)
def test_missing_key_is_detected_before_any_call(name: str, hint: str) -> None:
    blank = {"ANTHROPIC_API_KEY": " ", "GEMINI_API_KEY": ""}

    with pytest.raises(MissingKey) as caught:
        open_provider(ProviderChoice(name=name), load_facts(), environment=blank)

    assert (caught.value.reason, caught.value.exit_code) == ("missing_provider_api_key", 8)
    assert (caught.value.message, caught.value.hint) == (f"Provider '{name}' has no API key", hint)


def test_custom_server_needs_no_key() -> None:
    choice = ProviderChoice(name="openai", base_url="http://127.0.0.1:1/v1")

    assert open_provider(choice, load_facts(), environment={}).name == "openai"
    elsewhere = {"OPENAI_BASE_URL": "http://127.0.0.1:1/v1"}
    assert open_provider(ProviderChoice(name="openai"), load_facts(), environment=elsewhere).name == "openai"


def test_only_the_variable_named_in_the_settings_is_read() -> None:
    choice = ProviderChoice(name="anthropic", key_variable="TEAM_KEY")

    assert open_provider(choice, load_facts(), environment={"TEAM_KEY": "k"}).name == "anthropic"
    with pytest.raises(MissingKey):
        open_provider(choice, load_facts(), environment={"ANTHROPIC_API_KEY": "k"})


def test_error_for_an_unknown_provider_lists_the_known_ones() -> None:
    with pytest.raises(UsageError) as caught:
        open_provider(ProviderChoice(name="nobody"), load_facts(), environment={})

    assert caught.value.hint == "Use one of " + ", ".join(f"`{name}`" for name in sorted([*BUILT_IN, "offline"]))


@pytest.mark.parametrize("base_url", ["http://[bad", "http://host:port/v1", "ftp://host", "localhost:8080", "http://"])
def test_invalid_base_url_is_rejected(base_url: str) -> None:
    with pytest.raises(UsageError) as caught:
        open_provider(ProviderChoice(name="openai", base_url=base_url), load_facts(), environment={})

    assert caught.value.message == f"Base URL {base_url!r} is invalid"


def test_settings_define_the_connection_to_a_provider() -> None:
    options = ModelOptions.model_validate(
        {
            "provider": "openai",
            "providers": {
                "openai": {"base_url": "http://here/v1", "api_key_env": "MINE", "api": "chat"},
                "gemini": {"base_url": "http://there"},
            },
        }
    )

    assert choose_provider(options) == ProviderChoice(
        name="openai", base_url="http://here/v1", api="chat", key_variable="MINE"
    )
    assert choose_provider(options, "gemini").base_url == "http://there"
    assert choose_provider(options, "anthropic").key_variable == "ANTHROPIC_API_KEY"
    assert choose_provider(options, "offline") == ProviderChoice(name="offline")
