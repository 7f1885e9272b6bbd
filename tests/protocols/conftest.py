"""Workspaces behind protocol servers: the model server and the workspace of the command-line tests."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
sys.path.insert(0, str(Path(__file__).parents[1] / "cli"))

from model_server import ModelServer, running_model
from run_workspace import GREET, QUICK, Workspace, use_model


@pytest.fixture
def model() -> Iterator[ModelServer]:
    with running_model() as running:
        yield running


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A clean home folder, and a workspace folder next to it that is the current one."""
    for folder in ("home", "work"):
        (tmp_path / folder).mkdir()
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path / "work")
    for name in ("ANTHROPIC_API_KEY", "OPENAI_API_KEY", "GEMINI_API_KEY", "GOOGLE_API_KEY", "AGENT_SKILLS"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path / "home"


@pytest.fixture
def workspace(tmp_path: Path, home: Path, model: ModelServer) -> Workspace:
    made = Workspace(tmp_path / "work")
    made.configure(model=use_model(model), runtime=QUICK)
    made.add_skill("greeter", "Greet the user kindly with a script.", greet=GREET)
    return made
