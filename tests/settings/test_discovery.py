"""The effective settings file: the named one, else `./agent.yaml`, else the user's file, else none. Never two."""

import json
from pathlib import Path

import pytest

from metier.cli.main import run


def write(path: Path, name: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"model:\n  name: {name}\n", encoding="utf-8")
    return path


def shown(capsys: pytest.CaptureFixture[str], *args: str) -> tuple[str, str, str | None]:
    """Return the model name, its source, and the file."""
    assert run(["config", "show", "--origin", "--json", *args]) == 0
    answer = json.loads(capsys.readouterr().out)
    return answer["settings"]["model"]["name"], answer["origins"]["model.name"]["detail"], answer["file"]


def test_first_file_found_wins(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    user = write(place.parent / "home/.config/agent/agent.yaml", "users")
    found = [shown(capsys)]
    here = write(place / "agent.yaml", "local")
    found.append(shown(capsys))
    named = write(place / "other.yaml", "named")
    found.append(shown(capsys, "--config", "other.yaml"))

    assert found == [
        ("users", "~/.config/agent/agent.yaml:2", str(user)),
        ("local", "agent.yaml:2", str(here)),
        ("named", "other.yaml:2", str(named)),
    ]


def test_files_are_not_merged(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(place.parent / "home/.config/agent/agent.yaml", "users")
    (place / "agent.yaml").write_text("runtime:\n  max_turns: 3\n", encoding="utf-8")

    assert shown(capsys) == ("claude-sonnet-4-5", None, str(place / "agent.yaml"))


def test_invalid_file_that_is_not_selected_is_not_read(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(place / "agent.yaml", "local")
    (place.parent / "home/.config/agent/agent.yaml").mkdir(parents=True)

    assert shown(capsys)[0] == "local"


def test_defaults_apply_without_a_file(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert shown(capsys) == ("claude-sonnet-4-5", None, None)
    assert run(["config", "validate"]) == 0
    assert capsys.readouterr().out == "There is no settings file; the defaults are valid\n"


def test_xdg_folder_replaces_the_usual_one(
    place: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    write(place.parent / "home/.config/agent/agent.yaml", "usual")
    write(place.parent / "xdg/agent/agent.yaml", "moved")

    monkeypatch.setenv("XDG_CONFIG_HOME", str(place.parent / "xdg"))
    moved = shown(capsys)[0]
    monkeypatch.setenv("XDG_CONFIG_HOME", "relative")
    ignored = shown(capsys)[0]

    assert (moved, ignored) == ("moved", "usual")


def test_home_that_is_not_a_folder_is_ignored(
    place: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (place / "file").touch()
    monkeypatch.setenv("HOME", str(place / "file"))

    assert shown(capsys)[2] is None


def test_removed_current_directory_is_an_error(
    place: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    gone = place / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()

    assert run(["config", "show"]) == 2
    assert (
        capsys.readouterr().err == "error: The current directory no longer exists\nhint: Change to another directory\n"
    )
