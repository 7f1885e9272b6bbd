"""`--ci`: output and files of a run on a build machine."""

from pathlib import Path
from xml.etree import ElementTree as ET

import pytest
from model_server import ModelServer, calls, says
from run_workspace import Workspace

type Capture = pytest.CaptureFixture[str]

STEP = "---\nname: {name}\n{next}---\n{body}\n"


def get_folder(workspace: Workspace) -> Path:
    return workspace.folder / "runs" / workspace.run_ids()[-1]


@pytest.fixture(autouse=True)
def no_ci(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("GITHUB_ACTIONS", "GITLAB_CI", "GITHUB_STEP_SUMMARY"):
        monkeypatch.delenv(name, raising=False)


def test_run_in_ci_is_grouped_by_turn_and_summarized(
    workspace: Workspace, model: ModelServer, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: Capture
) -> None:
    page = tmp_path / "page.md"
    monkeypatch.setenv("GITHUB_ACTIONS", "true")
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(page))
    model.follow(
        calls("Write", path="a|b.txt", content="::error::no"), calls("Read", path="a|b.txt"), says("All *done*")
    )

    assert workspace.agent("run", "--ci", "Write <it>") == 0

    shown = capsys.readouterr()
    lines = shown.err.splitlines()
    assert shown.out == "All *done*\n"
    assert lines.count("::endgroup::") == sum(line.startswith("::group::Turn") for line in lines) == 3
    assert not any(line.startswith("::error") for line in lines)
    assert "\x1b" not in shown.err
    summary = (get_folder(workspace) / "summary.md").read_text()
    assert summary.startswith("## Write &lt;it>\n\n**completed** · 3 turns")
    assert "All *done*" in summary
    assert "| 1.1 | Write `a\\|b.txt` | succeeded |" in summary
    assert page.read_text().strip() == summary.strip()


def test_failed_run_has_a_failed_test_case_and_a_resume_hint(
    workspace: Workspace, model: ModelServer, capsys: Capture
) -> None:
    model.follow(calls("Glob", pattern="*.a"), calls("Glob", pattern="*.b"), says("Done"))

    assert workspace.agent("run", "--ci", "--quiet", "Look\x07", "--max-turns", "1") == 7

    folder = get_folder(workspace)
    suite = ET.fromstring((folder / "junit.xml").read_text())[0]
    assert (suite.get("tests"), suite.get("failures")) == ("1", "1")
    assert "which is the limit" in str(suite[0][0].get("message"))
    assert "agent resume" in (folder / "summary.md").read_text()
    assert "Turn 1" not in capsys.readouterr().err


def test_steps_of_a_task_are_test_cases(workspace: Workspace, model: ModelServer, capsys: Capture) -> None:
    folder = workspace.folder / ".agent/tasks/check"
    folder.mkdir(parents=True)
    (folder / "TASK.md").write_text(STEP.format(name="Check it", next="next: report.md\n", body="Look around."))
    (folder / "report.md").write_text(STEP.format(name="Report", next="next: end.md\n", body="Say it."))
    (folder / "end.md").write_text(STEP.format(name="End", next="", body="Stop."))
    model.follow(says("Looked"), *[calls("Glob", pattern=f"*.{n}") for n in range(4)])

    assert workspace.agent("task", "run", "check", "--ci", "--max-turns", "2") != 0

    suite = ET.fromstring((get_folder(workspace) / "junit.xml").read_text())[0]
    cases = {case.get("name"): [child.tag for child in case] for case in suite}
    assert list(cases.values()) == [[], ["failure"], ["skipped"]]
    capsys.readouterr()


def test_paused_run_is_not_a_failed_test(workspace: Workspace, model: ModelServer, capsys: Capture) -> None:
    model.follow(calls("Glob", pattern="*.a"), says("Done"))

    assert workspace.agent("run", "--ci", "Look", "--max-turns", "1", "--on-limit", "park") == 7

    suite = ET.fromstring((get_folder(workspace) / "junit.xml").read_text())[0]
    assert (suite.get("failures"), suite.get("skipped")) == ("0", "1")
    capsys.readouterr()
