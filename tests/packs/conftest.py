"""A copy of a pack in its own folder, and a model behind a real socket."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
sys.path.insert(0, str(Path(__file__).parents[1] / "cli"))

from model_server import ModelServer, running_model
from pack_folder import PackFolder


@pytest.fixture
def model() -> Iterator[ModelServer]:
    with running_model() as running:
        yield running


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> PackFolder:
    """An empty folder of a user with an empty home and no keys."""
    home, work = tmp_path / "home", tmp_path / "work"
    home.mkdir()
    work.mkdir()
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.chdir(work)
    for name in ("ANTHROPIC_API_KEY", "OPENAI_API_KEY", "GEMINI_API_KEY", "GOOGLE_API_KEY", "AGENT_SKILLS"):
        monkeypatch.delenv(name, raising=False)
    return PackFolder(work)
