"""Every example that help shows is run, in a workspace of the template `starter`, with the exit code that it says."""

import json
import os
import shlex
import shutil
from pathlib import Path

import pytest

from metier.cli.help.help_texts import Example, load_texts
from metier.cli.main import run

EXAMPLES = [(path, example) for path, text in load_texts().items() for example in text.examples]
CAREFUL = "---\nname: Careful\ndescription: Asks about everything.\nprofile: guarded\n---\n\nAsk.\n"
SKILL = "---\nname: notes-helper\ndescription: Helps with notes.\n---\n\n# Notes helper\n\nRead the notes.\n"


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A home with a workspace that has runs behind it, the last of which waits for an approval."""
    home = tmp_path_factory.mktemp("home")
    folder = home / "work"
    folder.mkdir()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HOME", str(home))
        patch.delenv("AGENT_SKILLS", raising=False)
        patch.chdir(folder)
        assert run(["init", "--provider", "offline"]) == 0
        package = folder / "packages/notes-helper"
        package.mkdir(parents=True)
        (package / "SKILL.md").write_text(SKILL, encoding="utf-8")
        (folder / ".agent/agents/careful").mkdir()
        (folder / ".agent/agents/careful/AGENT.md").write_text(CAREFUL, encoding="utf-8")
        assert run(["schedule", "add", "morning", "list the open tasks", "--cron", "@daily"]) == 0
        assert run(["run", "list the open tasks", "--quiet"]) == 0
        assert run(["run", "list the open tasks", "--quiet", "--agent", "careful"]) == 3
    return home


@pytest.fixture
def place(prepared: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    home = tmp_path / "home"
    shutil.copytree(prepared, home, symlinks=True)
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.delenv("AGENT_SKILLS", raising=False)
    monkeypatch.setenv("AGENT_WORKER_AUTOSTART", "false")
    monkeypatch.chdir(home / "work")
    return home / "work"


@pytest.mark.parametrize(("path", "example"), EXAMPLES, ids=[example.line for _, example in EXAMPLES])
def test_an_example_does_what_it_says(
    path: str, example: Example, place: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    line = example.line
    if path == "agent undo":
        assert run(["run", "list the open tasks", "--quiet"]) == 0  # those of the copied store were not started in it
    if "APPROVAL" in line:
        assert run(["approvals", "list", "--json"]) == 0
        line = line.replace("APPROVAL", json.loads(capsys.readouterr().out)[0]["approval_id"])
    with Path(os.devnull).open(encoding="utf-8") as nothing:
        monkeypatch.setattr("sys.stdin", nothing)
        codes = [run(shlex.split(part)[1:]) for part in line.partition(" > ")[0].split(" && ")]

    assert path in f"{line} ".replace("agent skill ", "agent skills ")
    assert codes == [*([0] * (len(codes) - 1)), example.exit_code], capsys.readouterr().err
