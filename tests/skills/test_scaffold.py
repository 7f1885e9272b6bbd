from __future__ import annotations

import json
import subprocess
import sys
from typing import TYPE_CHECKING

from metier.definitions.skills.skill import load_skill

if TYPE_CHECKING:
    from tests.skills.conftest import Machine


def test_new_skill_is_strictly_valid_and_its_script_follows_the_contract(machine: Machine) -> None:
    result = machine.agent("create", "My_Skill", "--json")

    folder = machine.workspace / result.json["path"]
    assert folder == machine.workspace / ".agent/skills/my-skill"
    reading = load_skill(folder, strict=True)
    assert reading.problems == ()
    assert reading.skill is not None
    assert (folder / "references/guide.md").is_file()
    script = [sys.executable, str(folder / "scripts/example.py")]
    told = subprocess.run([*script, "--help"], capture_output=True, text=True, check=True)
    counted = subprocess.run([*script, "--json"], input="a b\n", capture_output=True, text=True, check=True)
    failed = subprocess.run([*script, "nothing", "--json"], capture_output=True, text=True, check=False)
    assert "--json" in told.stdout
    assert json.loads(counted.stdout) == {"lines": 1, "words": 2, "characters": 4}
    assert (failed.returncode, failed.stdout) == (1, "")
    evals = json.loads((folder / "evals/evals.json").read_text())
    assert all((folder / file).is_file() for case in evals["evals"] for file in case["files"])


def test_existing_folder_is_not_changed_and_an_invalid_name_creates_nothing(machine: Machine) -> None:
    assert machine.agent("create", "notes", "--path", "here").code == 0

    assert machine.agent("create", "NOTES", "--path", "here").code == 2
    assert machine.agent("create", "a--b", "--path", "here").code == 2
    assert [path.name for path in (machine.workspace / "here").iterdir()] == ["notes"]


def test_new_skill_can_be_installed(machine: Machine) -> None:
    machine.agent("create", "notes")

    assert machine.agent("add", ".agent/skills/notes", "--yes", "--json").json["report"]["scripts"] == [
        "scripts/example.py"
    ]
