"""Hooks and a cloned folder: it cannot affect the hooks of the user's home folder."""

import json
from pathlib import Path

import pytest
from cloned_folder import fill
from model_server import ModelServer, says
from run_workspace import Workspace

type Capture = pytest.CaptureFixture[str]


def note(file: Path, word: str) -> str:
    """Return hooks that write a word to a file at the start of a run."""
    command = {"type": "command", "command": f"cat > /dev/null; echo {word} >> {file}"}
    return json.dumps({"hooks": {"SessionStart": [{"hooks": [command]}]}})


def put_home_hook(home: Path, file: Path) -> None:
    (home / ".claude").mkdir(parents=True)
    (home / ".claude" / "settings.json").write_text(note(file, "home"))


@pytest.mark.parametrize(
    ("name", "text"),
    [
        (".agent/hooks.yaml", "import: claude\n"),
        (".nanobot/hooks.yaml", "hooks: {import: claude}\n"),
        ("agent.yaml", "hooks: {import: claude}\n"),
    ],
)
def test_clone_does_not_enable_the_hooks_of_the_home_folder(
    clone: Workspace, model: ModelServer, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, name: str, text: str
) -> None:
    mark = tmp_path / "mark"
    put_home_hook(tmp_path / "home", mark)
    place = fill(clone, {name: text, ".claude/settings.json": note(mark, "folder")}, monkeypatch)
    model.follow(*[says("Done")] * 3)

    assert place.agent("run", "-q", "--profile", "permissive", "Look") == 0
    assert not mark.exists()

    # Trusting the folder is a word about the folder, so its own hooks run, and still none of the home folder.
    assert place.agent("trust") == 0
    assert place.agent("run", "-q", "--profile", "permissive", "Look") == 0
    assert mark.read_text() == "folder\n"


def test_import_in_user_settings_runs_home_hooks_in_a_clone(
    clone: Workspace, model: ModelServer, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    mark = tmp_path / "mark"
    put_home_hook(tmp_path / "home", mark)
    own = tmp_path / "home" / ".config" / "agent" / "agent.yaml"
    own.parent.mkdir(parents=True)
    own.write_text("hooks: {import: claude}\n")
    place = fill(clone, {"agent.yaml": "hooks: {}\n", ".claude/settings.json": note(mark, "folder")}, monkeypatch)
    model.follow(says("Done"))

    assert place.agent("run", "-q", "--profile", "permissive", "Look") == 0

    assert mark.read_text() == "home\n"


def test_import_in_a_folder_of_the_user_runs_home_hooks(clone: Workspace, model: ModelServer, tmp_path: Path) -> None:
    mark = tmp_path / "mark"
    put_home_hook(tmp_path / "home", mark)
    clone.write(".agent/hooks.yaml", "import: claude\n")
    model.follow(says("Done"))

    assert clone.agent("run", "-q", "--profile", "permissive", "Look") == 0

    assert mark.read_text() == "home\n"


def test_trust_in_a_hook_script_of_a_clone_covers_its_exact_bytes(
    clone: Workspace, model: ModelServer, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: Capture
) -> None:
    mark = tmp_path / "mark"
    hooks = {"SessionStart": [{"hooks": [{"type": "command", "command": f"sh start.sh {mark}"}]}]}
    files = {"agent.yaml": json.dumps({"hooks": hooks}), "start.sh": 'echo x >> "$1"\n'}
    place = fill(clone, files, monkeypatch)
    model.follow(*[says("Done")] * 3)
    assert place.agent("trust") == 0
    assert f"agent.yaml: SessionStart runs sh start.sh {mark}" in capsys.readouterr().out
    assert place.agent("run", "-q", "--profile", "permissive", "Look") == 0
    assert mark.read_text() == "x\n"

    place.write("start.sh", 'echo changed >> "$1"\n')
    assert place.agent("run", "-q", "--profile", "permissive", "Look") == 0

    assert mark.read_text() == "x\n"
    assert "hooks_withheld" in capsys.readouterr().err
