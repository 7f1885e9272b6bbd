"""The evals page: results per target over time, and regressions by commit."""

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from console_client import ConsoleClient
from console_scene import prepare
from model_server import ModelServer, running_model
from run_workspace import Workspace
from running_server import serving

from metier.evals.eval_results import EvalResult, RunRow, Status, save_result
from metier.evals.grading import Grade

HOSTILE = "<script>alert(1)</script>"


@pytest.fixture
def scene(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Workspace]:
    home, folder = tmp_path / "home", tmp_path / "notebook"
    home.mkdir()
    folder.mkdir()
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setenv("OPENAI_API_KEY", "k" * 12)
    monkeypatch.chdir(folder)
    with running_model() as model:
        yield prepare_with(folder, model)


def prepare_with(folder: Path, model: ModelServer) -> Workspace:
    return prepare(folder, model)


def keep(folder: Path, name: str, commit: str, **statuses: Status) -> None:
    failed = Grade(check="contains", text="contains: '2 files'", verdict="failed", evidence=HOSTILE)
    rows = tuple(
        RunRow(case_id=case, status=status, grades=(failed,) if status == "failed" else ())
        for case, status in statuses.items()
    )
    result = EvalResult(
        id=name, target="skill:notes", mode="replay", started_at=f"2026-11-{name}", commit=commit * 40, rows=rows
    )
    save_result(folder / "runs", result)


def test_a_case_broken_by_a_commit_is_highlighted(scene: Workspace) -> None:
    keep(scene.folder, "01", "a", one="passed", two="failed")
    keep(scene.folder, "02", "b", one="failed", two="passed", three="passed")
    with serving(scene.folder) as server, closing(ConsoleClient(server)) as console:
        console.open("/evals")
        words = console.words()

        assert console.status == 200
        assert "skill:notes" in words
        assert "2 of 3 passed" in words
        assert "Since commit aaaaaaaaaaaa" in words
        assert words.index("worse : one, passed → failed (contains: '2 files')") < words.index("better: two")
        assert HOSTILE not in console.page


def test_the_page_without_evals_explains_how_to_create_some(scene: Workspace) -> None:
    with serving(scene.folder) as server, closing(ConsoleClient(server)) as console:
        console.open("/evals")

        assert "No eval was run in this workspace" in console.words()


def test_case_that_became_stale_is_not_shown_as_better(scene: Workspace) -> None:
    keep(scene.folder, "01", "a", one="failed", two="failed")
    keep(scene.folder, "02", "b", one="stale", two="passed")

    with serving(scene.folder) as server, closing(ConsoleClient(server)) as console:
        console.open("/evals")

    assert "changed : one, failed → stale" in console.words().replace("changed:", "changed :")
    assert "better : two, failed → passed" in console.words().replace("better:", "better :")
