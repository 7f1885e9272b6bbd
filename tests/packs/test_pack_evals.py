"""Copied packs pass their own evals from recordings."""

import json
import shutil
from pathlib import Path

import pytest

from metier.cli.main import run

pytestmark = pytest.mark.slow

DEMOS = Path(__file__).parents[2] / "demos"


@pytest.mark.parametrize(("pack", "cases"), [("release-notes", 3), ("research-report", 2)])
def test_a_pack_passes_its_evals(
    pack: str, cases: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(DEMOS / pack, tmp_path / "pack")
    (tmp_path / "home").mkdir()
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path / "pack")

    code = run(["eval", "--json"])

    (result,) = json.loads(capsys.readouterr().out)
    assert (code, [row["status"] for row in result["rows"]]) == (0, ["passed"] * cases), result["rows"]


def test_a_changed_step_of_a_task_is_stale_and_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(DEMOS / "release-notes", tmp_path / "pack")
    (tmp_path / "home").mkdir()
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path / "pack")
    step = tmp_path / "pack/.agent/tasks/release-notes/draft.md"
    step.write_text(step.read_text() + "\nBe brief.\n")

    assert run(["eval", "release-notes"]) == 1
    assert ".agent/tasks/release-notes/draft.md changed" in capsys.readouterr().out
