"""`demos/basic_demo_skills`: the skills that ship, as skills of a project."""

import shutil
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


@pytest.mark.parametrize("name", NAMES)
def test_demo_skill_is_the_one_that_ships(name: str) -> None:
    assert read_tree(DEMOS / name) == read_tree(ROOT / "src/metier/bundled" / name)


def test_copied_into_a_project_they_do_its_work_offline(
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
