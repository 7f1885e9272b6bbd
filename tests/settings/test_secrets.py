"""Keys come only from environment variables, and no command ever shows one."""

import json
from pathlib import Path

import pytest

from metier.cli.main import run

# Joined here, so that no scanner takes this file for a leak.
BODY = "a1B2c3D4e5F6g7H8i9J0k1L2m3N4o5P6"
KEYS = {
    "anthropic": "sk-" + "ant-api03-" + BODY,
    "openai": "sk-" + "proj-" + BODY,
    "google": "AI" + "za" + BODY + "xyz",
    "github": "gh" + "p_" + BODY,
    "slack": "xo" + "xb-" + BODY,
    "aws": "AK" + "IA" + "ABCDEFGHIJKLMNOP",
}


def refused(capsys: pytest.CaptureFixture[str], secret: str, *, line: int) -> str:
    """Return every command's message about the file: with the line, without the secret."""
    said: list[str] = []
    for args in (["config", "validate"], ["config", "validate", "--json"], ["config", "show", "--debug"]):
        assert run(args) == 2
        captured = capsys.readouterr()
        said.append(captured.out + captured.err)
    assert secret not in "".join(said)
    assert f"agent.yaml:{line}: error: " in said[0]
    return said[0]


@pytest.mark.parametrize("key", ["api_key", "apikey", "key", "token", "secret", "password"])
def test_setting_that_would_contain_a_secret_is_rejected_without_showing_it(
    key: str, place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    secret = "looks-like-no-known-format"
    text = f"model:\n  providers:\n    anthropic:\n      {key}: {secret}\n"
    (place / "agent.yaml").write_text(text, encoding="utf-8")

    said = refused(capsys, secret, line=4)

    assert f"'model.providers.anthropic.{key}' holds what looks like a secret" in said
    assert "keys come only from environment variables" in said
    assert "ANTHROPIC_API_KEY" in said


@pytest.mark.parametrize("vendor", KEYS)
@pytest.mark.parametrize("place_in_file", ["api_key_env: {}", "base_url: {}", "whatever: {}", "{}: x"])
def test_value_that_looks_like_a_key_is_rejected_in_any_position(
    vendor: str, place_in_file: str, *, place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    secret = KEYS[vendor]
    text = "model:\n  providers:\n    openai:\n      " + place_in_file.format(secret) + "\n"
    (place / "agent.yaml").write_text(text, encoding="utf-8")

    assert "[secret_in_file]" in refused(capsys, secret, line=4)


def test_secret_in_a_list_is_refused_with_the_line_of_its_entry(
    place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    secret = KEYS["openai"]
    text = f"shell:\n  allowed_prefixes:\n    - ls\n    - curl -H {secret}\n"
    (place / "agent.yaml").write_text(text, encoding="utf-8")

    assert "[secret_in_file]" in refused(capsys, secret, line=4)


def test_database_address_in_the_file_is_refused(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (place / "agent.yaml").write_text("store:\n  database_url: postgresql://u:hunter22@h/db\n", encoding="utf-8")

    assert "set DATABASE_URL in the environment" in refused(capsys, "hunter22", line=2)


def test_mistyped_number_is_not_mistaken_for_a_secret(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (place / "agent.yaml").write_text("model:\n  max_token: 5\n", encoding="utf-8")

    assert run(["config", "validate"]) == 2
    assert "Did you mean 'max_tokens'?" in capsys.readouterr().err


def test_invalid_variable_that_contains_a_key_is_named_but_not_shown(
    place: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AGENT_MODEL_PROVIDERS_OPENAI_API_KEY_ENV", KEYS["openai"])

    assert run(["config", "show"]) == 2
    said = capsys.readouterr().err
    assert "Environment variable AGENT_MODEL_PROVIDERS_OPENAI_API_KEY_ENV must be the name of" in said
    assert BODY not in said


def test_show_prints_no_password_and_no_key(
    place: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", KEYS["openai"])
    monkeypatch.setenv("DATABASE_URL", "postgresql://u:hunter22@h/db")
    monkeypatch.setenv("AGENT_MODEL_PROVIDERS_OPENAI_BASE_URL", f"https://me:p:hunter22@host/v1?api_key={BODY}&x=1")
    monkeypatch.setenv("AGENT_MODEL_NAME", KEYS["anthropic"])
    said: list[str] = []

    for args in (["show"], ["show", "--origin"], ["show", "--json", "--origin"], ["validate", "--json"]):
        assert run(["config", *args]) == 0
        captured = capsys.readouterr()
        said.append(captured.out + captured.err)

    assert "https://me:***REDACTED***@host/v1?api_key=***REDACTED***&x=1" in said[0]
    assert json.loads(said[2])["settings"]["model"]["providers"]["openai"]["base_url"] == (
        "https://me:***REDACTED***@host/v1?api_key=***REDACTED***&x=1"
    )
    assert not any(secret in text for text in said for secret in ("hunter22", BODY))


def test_url_with_a_password_in_the_file_causes_a_warning(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = "model:\n  providers:\n    openai:\n      base_url: http://me:hunter22@localhost/v1\n"
    (place / "agent.yaml").write_text(text, encoding="utf-8")

    assert run(["config", "validate"]) == 0
    assert capsys.readouterr().err == (
        "agent.yaml:4: warning: model.providers.openai.base_url contains a password [password_in_file] "
        "(Set AGENT_MODEL_PROVIDERS_OPENAI_BASE_URL instead)\n"
    )
