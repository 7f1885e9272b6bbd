"""Conventions of every pack in `demos/`: it is valid, its rules apply, its scripts have help."""

import subprocess
import sys
from pathlib import Path

import pytest
from pack_folder import DEMOS, PackFolder

pytestmark = pytest.mark.slow

PACKS = sorted(path.parent.name for path in DEMOS.glob("*/.agent"))
SCRIPTS = sorted(DEMOS.glob("*/.agent/skills/*/scripts/*.py"))


def name_of(script: Path) -> str:
    return f"{script.parts[-3]}/{script.stem}"


def test_there_are_two_packs() -> None:
    assert PACKS == ["release-notes", "research-report"]


@pytest.mark.parametrize("pack", PACKS)
def test_a_pack_is_valid_and_its_rules_apply(folder: PackFolder, pack: str) -> None:
    folder.copy(pack)

    for command in (["validate", "--strict"], ["task", "validate"], ["policy", "test"]):
        done = folder.agent(*command)
        assert done.returncode == 0, done.stdout + done.stderr
        assert "error" not in done.stdout
        assert "warning" not in done.stdout.replace("extension_field", "") or command[0] == "validate"


@pytest.mark.parametrize("pack", PACKS)
def test_the_readme_lists_every_agent_skill_and_task(pack: str) -> None:
    text = (DEMOS / pack / "README.md").read_text("utf-8")
    definitions = [path.parent.name for path in (DEMOS / pack / ".agent").rglob("[AST]*[A-Z].md")]

    assert [name for name in definitions if name not in text] == []


@pytest.mark.parametrize("script", SCRIPTS, ids=name_of)
def test_a_script_needs_only_python_and_has_help(script: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-I", "-B", "-W", "error", script, "--help"], capture_output=True, text=True, check=False
    )

    assert done.returncode == 0
    assert "--json" in done.stdout
    assert "# dependencies = []" in script.read_text("utf-8")
