"""Use the skill of `docs/tutorials/first-skill.md` with a model; `test_pages.py` runs it without one."""

import json
import re
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "cli"))

from model_server import calls, running_model, says
from walkthrough import Reader, read_through

pytestmark = pytest.mark.slow

PAGE = Path(__file__).parents[2] / "docs" / "tutorials" / "first-skill.md"


def test_model_reads_the_instructions_of_the_skill_runs_its_script_and_answers(tmp_path: Path) -> None:
    folder, home = tmp_path / "project", tmp_path / "home"
    folder.mkdir()
    home.mkdir()
    with running_model() as model:
        model.follow(
            calls("use_skill", skill="reading-time", reason="The user asks how long a text is"),
            calls("script_run", skill_name="reading-time", script_name="minutes", args=[str(folder / "sample.md")]),
            says("It takes one minute to read: 7 words."),
        )
        exported = {
            "AGENT_MODEL_PROVIDER": "openai",
            "AGENT_MODEL_NAME": "m",
            "AGENT_MODEL_PROVIDERS_OPENAI_BASE_URL": model.url,
            "OPENAI_API_KEY": "any",
        }

        assert read_through(PAGE, Reader(folder, home, has="model", exported=exported)) == 2

    first, second, third = (json.dumps(request) for request in model.received)
    assert "Estimates how long a text takes to read" in first
    assert "rounded up, and the number of words" in second
    assert re.search(r"words\W+7\b", third)
