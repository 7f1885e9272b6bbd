"""Follow the sub-agents page in an empty folder; only the model is scripted."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "cli"))

from model_server import calls, running_model, says
from role_model import RoleModel
from walkthrough import Reader, read_through

pytestmark = pytest.mark.slow

PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "sub-agents.md"
TASKS = [
    {"agent": "spelling", "task": "Find spelling mistakes in notes.md"},
    {"agent": "facts", "task": "Find wrong claims in notes.md"},
]
LOOK = calls("Read", path="notes.md")


def test_every_command_of_the_page_succeeds_with_the_shown_output(tmp_path: Path) -> None:
    home, folder = tmp_path / "home", tmp_path / "project"
    home.mkdir()
    folder.mkdir()
    lines = {
        "spelling checker": [LOOK, says("notes.md:1: chese should be cheese")],
        "fact checker": [LOOK, says("notes.md:1: the moon is rock")],
        "boss": [calls("delegate", tasks=TASKS), says("Two mistakes: the spelling of cheese, and the moon.")],
    }

    with running_model(RoleModel(lines=lines)) as model:
        exported = {
            "AGENT_MODEL_PROVIDERS_OPENAI_BASE_URL": model.url,
            "AGENT_MODEL_PROVIDER": "openai",
            "AGENT_MODEL_NAME": "m",
            "OPENAI_API_KEY": "any",
        }
        commands = read_through(PAGE, Reader(folder=folder, home=home, exported=exported))

    assert commands == 3
