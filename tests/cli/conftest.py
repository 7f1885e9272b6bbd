"""A workspace with settings for a local model server."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from model_server import ModelServer, running_model
from run_workspace import GREET, QUICK, Workspace, use_model


@pytest.fixture
def model() -> Iterator[ModelServer]:
    with running_model() as running:
        yield running


@pytest.fixture
def workspace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, model: ModelServer) -> Workspace:
    """A folder with one skill, whose settings name the local model server."""
    home, folder = tmp_path / "home", tmp_path / "work"
    home.mkdir()
    folder.mkdir()
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.chdir(folder)
    for name in ("ANTHROPIC_API_KEY", "OPENAI_API_KEY", "GEMINI_API_KEY", "GOOGLE_API_KEY", "AGENT_SKILLS"):
        monkeypatch.delenv(name, raising=False)
    made = Workspace(folder)
    made.configure(model=use_model(model), runtime=QUICK)
    made.add_skill("greeter", "Greet somebody kindly with a script.", greet=GREET)
    return made


@pytest.fixture
def clone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, model: ModelServer, workspace: Workspace) -> Workspace:
    """An empty folder to fill with `fill`; the model comes from the user's settings."""
    monkeypatch.setenv("AGENT_MODEL_PROVIDERS_OPENAI_BASE_URL", model.url)
    monkeypatch.setenv("AGENT_MODEL_PROVIDER", "openai")
    monkeypatch.setenv("AGENT_MODEL_NAME", "m")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.delenv("AGENT_TRUST", raising=False)
    return workspace
