from pathlib import Path

from skill_files import loaded, write_file, write_skill

from metier.definitions.skills.scripts import discover_scripts
from metier.definitions.skills.skill import load_skill


def names(folder: Path) -> list[str]:
    return [script.name for script in discover_scripts(loaded(load_skill(folder)))]


def with_fields(root: Path, fields: str) -> Path:
    folder = write_skill(root, "x", f"---\nname: x\ndescription: d\n{fields}---\n")
    for name in ("Status.py", "markets.py", "_private.py", "a_test.py", ".hidden.py", "notes.txt", "bad name.py"):
        write_file(folder / "scripts" / name, "")
    (folder / "scripts" / "folder.py").mkdir()
    (folder / "scripts" / "linked.py").symlink_to(folder / "SKILL.md")
    return folder


def test_only_regular_visible_python_files_are_found(tmp_path: Path) -> None:
    assert names(with_fields(tmp_path, "")) == ["_private.py", "a_test.py", "markets.py", "status.py"]


def test_ignored_patterns_are_excluded(tmp_path: Path) -> None:
    folder = with_fields(tmp_path, 'scripts_ignore: ["_*.py", "*_test.py"]\n')

    assert names(folder) == ["markets.py", "status.py"]


def test_listed_scripts_may_be_written_with_or_without_extension(tmp_path: Path) -> None:
    folder = with_fields(tmp_path, "scripts: [status, MARKETS.py, absent, linked]\n")

    assert names(folder) == ["markets.py", "status.py"]


def test_the_path_keeps_the_case_of_the_file(tmp_path: Path) -> None:
    folder = with_fields(tmp_path, "scripts: [status]\n")

    (script,) = discover_scripts(loaded(load_skill(folder)))

    assert script.path == folder / "scripts" / "Status.py"


def test_a_linked_scripts_folder_provides_no_scripts(tmp_path: Path) -> None:
    elsewhere = write_file(tmp_path / "elsewhere" / "evil.py", "").parent
    folder = write_skill(tmp_path, "x")
    (folder / "scripts").symlink_to(elsewhere)

    assert names(folder) == []


def test_a_skill_without_scripts_has_none(tmp_path: Path) -> None:
    assert names(write_skill(tmp_path, "x")) == []
