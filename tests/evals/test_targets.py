"""Agents with their own rules, grading functions of a pack, and results over time."""

import json
from pathlib import Path
from typing import Any

import pytest

from metier.cli.main import run
from metier.errors import UsageError
from metier.evals.bench import write_files
from metier.evals.eval_results import build_page, load_results

SKILL = """---
name: counter
description: Count the files of a folder.
entrypoint: {script: count, args: ["{workspace}"]}
---

# Counter

Run `count`.
"""
SCRIPT = """import json, os, sys
print(json.dumps({"summary": f"{len(os.listdir(sys.argv[1]))} files"}))
"""
CHECKS = """
def has_number(evidence):
    return "files" in evidence["result"], "looked at: " + evidence["result"]

def finds_fault(evidence):
    assert evidence["exit_code"] == 5, "the run ended well"

def breaks(evidence):
    return evidence["nothing"]
"""
CASES = """skill: counter
cases:
  - id: counted
    prompt: Count the files of this folder
    provider: offline
    setup: {files: {a.txt: a, b.txt: b}}
    checks:
      - {check: python, function: "checks.py:has_number"}
      - {check: python, function: "checks.py:finds_fault"}
      - {check: python, function: "checks.py:breaks"}
      - {check: python, function: "missing.py:f"}
      - {check: contains, text: 2 files}
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "home").mkdir()
    work = tmp_path / "work"
    skill = work / ".agent/skills/counter"
    (skill / "scripts").mkdir(parents=True)
    (skill / "SKILL.md").write_text(SKILL)
    (skill / "scripts/count.py").write_text(SCRIPT)
    (work / ".agent/evals").mkdir()
    (work / ".agent/evals/counter.yaml").write_text(CASES)
    (work / ".agent/evals/checks.py").write_text(CHECKS)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.delenv("AGENT_SKILLS", raising=False)
    monkeypatch.chdir(work)
    return work


def evaluate(capsys: pytest.CaptureFixture[str], *args: str) -> tuple[int, Any]:
    capsys.readouterr()
    code = run(["eval", *args, "--json"])
    return code, json.loads(capsys.readouterr().out)[0]


def test_functions_of_a_pack_grade_and_their_reasons_are_reported(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, _ = evaluate(capsys, "counter", "--record")
    again, result = evaluate(capsys, "counter")

    assert folder.is_dir()
    assert (code, again) == (1, 1)
    grades = [(grade["verdict"], grade["evidence"]) for grade in result["rows"][0]["grades"]]
    assert grades[0][0] == "passed"
    assert grades[0][1].startswith("looked at: ")
    assert grades[1] == ("failed", "the run ended well")
    assert grades[2] == ("failed", "KeyError: 'nothing'")
    assert grades[3] == ("failed", "File 'missing.py' is missing")
    assert grades[4][0] == "passed"


def test_results_are_stored_and_a_page_shows_the_changes(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = folder / ".agent/evals/counter.yaml"
    only = CASES.partition("      - {check: python")[0]
    file.write_text(f"{only}      - {{check: contains, text: 2 files}}\n")
    assert evaluate(capsys, "counter", "--record")[0] == 0
    file.write_text(f"{only}      - {{check: contains, text: 3 files}}\n")
    assert evaluate(capsys, "counter")[0] == 1

    (page,) = build_page(load_results(folder / "runs"))

    assert [point.share for point in page.points] == [1.0, 0.0]
    assert [(change.case_id, change.before, change.after) for change in page.changes] == [
        ("counted", "passed", "failed")
    ]
    assert page.changes[0].check == "contains: '3 files'"


def test_cases_of_an_untrusted_clone_are_not_run(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("AGENT_TRUST", "named")

    assert run(["eval", "counter", "--record"]) == 5
    assert "not trusted" in capsys.readouterr().err
    assert not (folder / ".agent/evals/recordings").exists()


def test_cases_in_a_clone_for_a_bundled_skill_are_not_run(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / ".agent/evals/other.yaml").write_text(
        "skill: workspace-inventory\nevals:\n  - id: ran\n    prompt: inventory this workspace\n"
        "    checks: [{check: python, function: 'evil:check'}]\n"
    )
    monkeypatch.setenv("AGENT_TRUST", "named")

    assert run(["eval", "workspace-inventory"]) != 0
    assert "you have not trusted it" in capsys.readouterr().err


@pytest.mark.parametrize("path", [".git/config", "sub/.GIT/hooks/pre-commit", "../out", "/etc/x"])
def test_case_cannot_write_git_settings_or_outside_files(tmp_path: Path, path: str) -> None:
    with pytest.raises(UsageError, match="is outside the workspace"):
        write_files(tmp_path, {path: "x"})
