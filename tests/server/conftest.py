"""A server on a free port, in a workspace with a local model."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
sys.path.insert(0, str(Path(__file__).parent.parent / "cli"))

from model_server import ModelServer, running_model
from run_workspace import GREET, QUICK, Workspace, use_model
from running_server import RunningServer, serving


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
    made.add_skill("greeter", "Greet a person kindly with a script.", greet=GREET)
    return made


@pytest.fixture
def server(workspace: Workspace) -> Iterator[RunningServer]:
    """The application behind a real socket, in a thread of this process. Configure the workspace before you use it."""
    with serving(workspace.folder) as running:
        yield running
