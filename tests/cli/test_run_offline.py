"""A run without a model, from the task to the report: the bundled skills, real scripts, no network."""

import json
import shutil
from pathlib import Path

import pytest
from run_workspace import Workspace

pytestmark = pytest.mark.slow

SAMPLE = Path(__file__).parent.parent.parent / "demos" / "sample-workspace"


@pytest.fixture
def sample(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Workspace:
    folder = tmp_path / "sample"
    shutil.copytree(SAMPLE, folder)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("AGENT_SKILLS", "all")
    monkeypatch.chdir(folder)
    return Workspace(folder)


def test_the_backbone_passes_on_results_and_ends_with_a_report(
    sample: Workspace, capsys: pytest.CaptureFixture[str]
) -> None:
    task = "First inventory the workspace, then summarise the notes, then write a report of it"

    assert sample.agent("run", "--provider", "offline", task) == 0

    err = capsys.readouterr().err
    assert "✓ script_run workspace-inventory" in err
    assert '"success"' not in err  # a step shows the summary of its script, not the JSON around it
    run = sample.folder / "runs" / sample.run_ids()[0]
    assert f"file:    runs/{run.name}/artifacts/report.html" in err
    results = json.loads((run / "results.json").read_text(encoding="utf-8"))
    assert [result["skill"] for result in results] == ["workspace-inventory", "content-summarizer"]
    assert all(result["result"]["summary"] for result in results)
    report = (run / "artifacts" / "report.md").read_text(encoding="utf-8")
    assert results[0]["result"]["summary"].split(";")[0] in report
    record = json.loads((run / "run.json").read_text(encoding="utf-8"))
    assert record["status"] == "completed"
    assert [Path(artifact["path"]).name for artifact in record["steps"][-1]["artifacts"]] == [
        "report.md",
        "report.html",
    ]


def test_earlier_results_are_written_only_if_a_script_needs_them(sample: Workspace) -> None:
    assert sample.agent("run", "--provider", "offline", "inventory the workspace") == 0

    assert not (sample.folder / "runs" / sample.run_ids()[0] / "results.json").exists()
