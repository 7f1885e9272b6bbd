"""Follow `docs/how-to/a2a.md` with a server that the test starts."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "server"))
sys.path.insert(0, str(Path(__file__).parents[1] / "cli"))

from running_server import serving_process
from walkthrough import Reader, read_through

pytestmark = pytest.mark.slow

PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "a2a.md"
SKILL = "---\nname: greeter\ndescription: Greet a person.\nentrypoint:\n  script: greet\n---\n\nRun `greet`.\n"
GREET = 'import json\nprint(json.dumps({"summary": "Hello from the script"}))\n'


def test_every_command_of_the_page_prints_the_shown_output(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home, folder = tmp_path / "home", tmp_path / "project"
    (folder / "skills/greeter/scripts").mkdir(parents=True)
    home.mkdir()
    (folder / "skills/greeter/SKILL.md").write_text(SKILL)
    (folder / "skills/greeter/scripts/greet.py").write_text(GREET)
    (folder / "agent.yaml").write_text("model: {provider: offline}\n")
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.chdir(folder)
    with serving_process(folder) as server:
        known = {"http://127.0.0.1:8321": server.running.url, "the-token": server.running.token}

        assert read_through(PAGE, Reader(folder=folder, home=home, addresses=known)) == 4
