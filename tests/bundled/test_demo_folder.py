"""`demos/basic_demo_skills`: the bundled skills, used in a project."""

import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from metier.cli.main import run

ROOT = Path(__file__).parents[2]
DEMOS = ROOT / "demos/basic_demo_skills"
NAMES = [
    "content-summarizer",
    "keyword-search-extractor",
    "markdown-report-drafter",
    "task-checklist-builder",
    "workspace-inventory",
]


def read_tree(folder: Path) -> dict[str, bytes]:
    files = [path for path in folder.rglob("*") if path.is_file() and "__pycache__" not in path.parts]
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in files}


def test_wheel_contains_the_demo_skills(tmp_path: Path) -> None:
    build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path)]
    subprocess.run(build, cwd=ROOT, check=True, capture_output=True)
    with zipfile.ZipFile(next(tmp_path.glob("*.whl"))) as wheel:
        assert len(set(wheel.namelist())) == len(wheel.namelist())
        wheel.extractall(tmp_path)

    for name in NAMES:
        assert read_tree(tmp_path / "metier/bundled" / name) == read_tree(DEMOS / name)


def test_the_repository_has_one_copy_of_the_demo_skills() -> None:
    tracked = subprocess.run(["git", "ls-files", "src/metier/bundled"], cwd=ROOT, capture_output=True, text=True)

    assert [line for line in tracked.stdout.splitlines() if line.split("/")[3] in NAMES] == []


def test_copies_for_an_editable_install_follow_the_originals(tmp_path: Path) -> None:
    for folder in ("demos/basic_demo_skills", "scripts"):
        shutil.copytree(ROOT / folder, tmp_path / folder, ignore=shutil.ignore_patterns("__pycache__"))
    copy_skills = [sys.executable, tmp_path / "scripts/demo_skills.py"]
    originals = tmp_path / "demos/basic_demo_skills"
    copies = tmp_path / "src/metier/bundled"

    subprocess.run(copy_skills, check=True)
    (originals / "workspace-inventory/SKILL.md").write_text("changed")
    (originals / "workspace-inventory/references/output.md").unlink()
    subprocess.run(copy_skills, check=True)

    for name in NAMES:
        assert read_tree(copies / name) == read_tree(originals / name)
    assert (copies / "workspace-inventory/SKILL.md").read_text() == "changed"


def test_build_without_the_demo_skills_fails(tmp_path: Path) -> None:
    shutil.copytree(ROOT / "scripts", tmp_path / "scripts")
    done = subprocess.run([sys.executable, tmp_path / "scripts/demo_skills.py"], capture_output=True, text=True)

    assert done.returncode == 1
    assert "No skills in" in done.stderr


def test_demo_skills_copied_into_a_project_work_offline(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "home").mkdir()
    project = tmp_path / "project"
    shutil.copytree(ROOT / "demos/sample-workspace", project)
    shutil.copytree(DEMOS, project / "skills", ignore=shutil.ignore_patterns("__pycache__"))
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.delenv("AGENT_SKILLS", raising=False)
    monkeypatch.chdir(project)

    assert run(["skills", "list"]) == 0
    listed = [line.partition(" ")[0] for line in capsys.readouterr().out.splitlines()]
    assert run(["run", "--provider", "offline", "--quiet", "Take an inventory of the workspace"]) == 0

    assert listed == NAMES
    assert "files" in capsys.readouterr().out
