"""Follow the Python tutorial in an empty folder; only the model is scripted."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "cli"))

from model_server import calls, running_model, says
from walkthrough import Reader, read_through

pytestmark = pytest.mark.slow

PAGE = Path(__file__).parents[2] / "docs" / "tutorials" / "python.md"
REPLIES = (
    says("Good morning, Ada!"),
    says('{"number": "A-17", "total": 120.5, "due": "2026-02-03"}'),
    calls("count_stock", product="coffee"),
    calls("order", product="coffee", pieces=20),
    says("There was no coffee, so I ordered 20."),
    calls("Write", path="letter.txt", content="Dear Ada\n"),
    calls("Write", path="drafts/letter.txt", content="Dear Ada\n"),
    says("The letter is in drafts/letter.txt."),
    calls("ask_user", question="Which color?"),
    calls("Write", path="wall.txt", content="blue\n"),
    says("The wall is blue."),
    calls("Glob", pattern="*.py"),
    says("There is one Python file too many."),
)


def test_every_program_of_the_page_runs_and_prints_the_shown_output(tmp_path: Path) -> None:
    home, folder = tmp_path / "home", tmp_path / "project"
    home.mkdir()
    folder.mkdir()

    with running_model() as model:
        model.follow(*REPLIES, REPLIES[0], says("not asked"))
        # The scripted server speaks the format of OpenAI, and takes the place of the default provider.
        exported = {
            "AGENT_MODEL_PROVIDER": "openai",
            "AGENT_MODEL_NAME": "m",
            "AGENT_MODEL_PROVIDERS_OPENAI_BASE_URL": model.url,
        }
        commands = read_through(PAGE, Reader(folder=folder, home=home, exported=exported))
        environment = {**os.environ, "HOME": str(home), **exported}
        command = [sys.executable, "greet.py"]
        done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, check=False)

    assert (done.returncode, done.stdout) == (0, b"completed 1\nGood morning, Ada!\n"), done.stderr
    assert commands == 11
    assert len(model.script) == 1, "every reply was requested"
