"""The part of the agent's environment that a child process sees."""

import os

import pytest

from metier.tools.process.child_environment import build_environment, build_index_environment, is_allowed


@pytest.mark.parametrize(
    ("pattern", "name", "allowed"),
    [
        ("KALSHI_API_KEY", "KALSHI_API_KEY", True),
        ("KALSHI_*", "KALSHI_API_KEY", True),
        ("KALSHI_?", "KALSHI_A", True),
        ("KALSHI_*", "KALSHI", False),
        ("kalshi_*", "KALSHI_API_KEY", False),
        ("*", "KALSHI_API_KEY", False),
        ("A*", "AWS_SECRET_ACCESS_KEY", False),
        ("*_KEY", "KALSHI_API_KEY", False),
        ("[A-Z]*", "KALSHI_API_KEY", False),
        ("ANTHROPIC_*", "ANTHROPIC_API_KEY", False),
        ("AGENT_*", "AGENT_SKILLS", False),
        ("ANTHROPIC_API_KEY", "ANTHROPIC_API_KEY", True),
    ],
)
def test_pattern_matches_only_intended_variable_names(pattern: str, name: str, allowed: bool) -> None:
    assert is_allowed(name, [pattern]) is allowed


@pytest.mark.parametrize(
    ("written", "passed"),
    [(".::bin:/usr/bin:../x:/bin", "/usr/bin:/bin"), ("", os.defpath), (".", os.defpath), (None, os.defpath)],
)
def test_programs_are_searched_only_in_absolute_folders(written: str | None, passed: str) -> None:
    base = {} if written is None else {"PATH": written}

    assert build_environment(base)["PATH"] == passed


def test_ordinary_variables_are_passed_on_and_secrets_are_not() -> None:
    base = {
        "PATH": "/bin",
        "HOME": "/home/me",
        "LC_ALL": "C",
        "SSL_CERT_FILE": "/ca",
        "GITHUB_TOKEN": "x",
        "AWS_PROFILE": "x",
        "LD_PRELOAD": "x",
        "PYTHONPATH": "x",
        "HTTP_PROXY": "http://proxy:3128",
        "HTTPS_PROXY": "http://me:" + "word@proxy:3128",
        "UV_DEFAULT_INDEX": "https://index",
    }

    assert sorted(build_environment(base)) == ["HOME", "HTTP_PROXY", "LC_ALL", "PATH", "SSL_CERT_FILE"]
    assert {"UV_DEFAULT_INDEX", "HTTPS_PROXY"} < build_index_environment(base).keys()
    assert not {"GITHUB_TOKEN", "LD_PRELOAD", "PYTHONPATH"} & build_index_environment(base).keys()
