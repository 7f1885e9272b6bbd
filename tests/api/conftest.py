"""An empty workspace with its own home; it is the current folder of the program that uses the API."""

from pathlib import Path

import pytest


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    home, folder = tmp_path / "home", tmp_path / "work"
    home.mkdir()
    folder.mkdir()
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.chdir(folder)
    for name in ("ANTHROPIC_API_KEY", "OPENAI_API_KEY", "AGENT_SKILLS", "AGENT_STORE_BACKEND", "STATE_STORE_BACKEND"):
        monkeypatch.delenv(name, raising=False)
    return folder
