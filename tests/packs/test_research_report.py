"""The pack `research-report`, on real folders: with and without a model, and with invalid citations."""

import json
import subprocess
import sys

import pytest
from model_server import ModelServer, Reply, calls, says
from pack_folder import PackFolder, states

pytestmark = pytest.mark.slow

QUESTION = "question=How do tides affect the harbour?"


@pytest.fixture
def desk(folder: PackFolder) -> PackFolder:
    folder.copy("research-report")
    return folder


def check(desk: PackFolder) -> subprocess.CompletedProcess[str]:
    script = desk.path / ".agent/skills/citation-checker/scripts/check.py"
    return subprocess.run(
        [sys.executable, script, "--passages", "report/passages.json", "--report", "report/report.md"],
        cwd=desk.path, capture_output=True, text=True, encoding="utf-8", check=False,
    )  # fmt: skip


def test_a_report_with_citations_is_written_without_a_model(desk: PackFolder) -> None:
    outcome = desk.run_task("research-report", "--provider", "offline", "--input", QUESTION)

    assert outcome["status"] == "completed", outcome
    assert [state for _, state in states(outcome)] == ["succeeded"] * 4
    report = desk.read("report/report.md")
    assert report.startswith("# How do tides affect the harbour?\n")
    assert "3.4 metres at spring tide and 1.6 metres at neap tide" in report
    assert "[S3.1]" in report
    assert "- S3: sources/tides.md" in report
    assert "longer quay" not in report, "a passage without a word of the question is left out"
    assert desk.read("report/check.txt") == "ok: 6 claims\n"


def test_a_custom_folder_is_read(desk: PackFolder) -> None:
    desk.write("interviews/one.md", "# Bread\n\nThe bakery opens at six.\n\nNobody sleeps.\n")

    outcome = desk.run_task(
        "research-report", "--provider", "offline", "--input", "question=When does the bakery open?",
        "--input", "folder=interviews",
    )  # fmt: skip

    assert outcome["status"] == "completed", outcome
    passages = json.loads(desk.read("report/passages.json"))["passages"]
    assert [(each["id"], each["source"], each["line"]) for each in passages] == [("S1.1", "interviews/one.md", 3)]


@pytest.mark.parametrize("named", ["question=Zebra?", "folder=../other"])
def test_an_unanswerable_question_fails_at_the_first_step(desk: PackFolder, named: str) -> None:
    inputs = ["--input", QUESTION, "--input", named]

    done = desk.agent("task", "run", "research-report", "--provider", "offline", *inputs)

    assert done.returncode == 1
    assert not (desk.path / "report/report.md").exists()


def test_a_missing_question_is_an_error(desk: PackFolder) -> None:
    done = desk.agent("task", "run", "research-report", "--provider", "offline")

    assert done.returncode == 2
    assert "input 'question' is missing" in done.stderr


@pytest.mark.parametrize(
    ("claim", "fault"),
    [
        ("The sea is wet.", "the paragraph cites no passage"),
        ("The sea is wet. [S9.9]", "there is no passage S9.9"),
        (
            "They say “the sea is very wet”. [S3.1]",
            "the quotation “the sea is very wet” is in no passage that is cited",
        ),
        ("- The sea is wet", "the paragraph cites no passage"),
    ],
)
def test_a_claim_without_a_source_is_reported_with_its_line(desk: PackFolder, claim: str, fault: str) -> None:
    desk.run_task("research-report", "--provider", "offline", "--input", QUESTION)
    desk.write("report/report.md", f"# Tides\n\nThe range is 3.4 metres. [S3.1]\n\n{claim}\n\n## Sources\n\n- S3\n")

    done = check(desk)

    assert done.returncode == 1
    assert done.stdout == f"report.md:5: {fault}\n"


def test_a_changed_source_is_rejected(desk: PackFolder) -> None:
    desk.run_task("research-report", "--provider", "offline", "--input", QUESTION)
    desk.write("sources/tides.md", "# Tides\n\nAll readings were wrong.\n")

    assert "passage S3.1 is no longer in sources/tides.md" in check(desk).stdout


def test_a_model_must_cite_the_sources(desk: PackFolder, model: ModelServer) -> None:
    root = str(desk.path)
    desk.use(model)

    def script(skill: str, name: str, *args: str) -> Reply:
        return calls("script_run", skill_name=skill, script_name=name, json=True, args=list(args))

    passages, report = f"{root}/report/passages.json", f"{root}/report/report.md"
    verify = script("citation-checker", "check", "--root", root, "--passages", passages, "--report", report,
                    "--out", f"{root}/report/check.txt")  # fmt: skip
    draft = "# Tides\n\nThe range is 3.4 metres at spring tide. {}\n\n## Sources\n\n- S3: sources/tides.md\n"
    model.follow(
        script("source-reader", "gather", "--root", root, "--question", "tides", "--out", passages),
        says("Gathered."),
        calls("Write", path="report/outline.md", content="# Tides\n\n## Range\n\n- S3.1: range\n"),
        says("Outlined."),
        calls("Write", path="report/report.md", content=draft.format("")),
        says("Drafted."),
        verify,
        calls("Read", path="report/report.md"),
        calls("Edit", path="report/report.md", old="spring tide. ", new="spring tide. [S3.1]"),
        verify,
        says("Every claim has its source."),
    )

    outcome = desk.run_task("research-report", "--input", QUESTION)

    assert outcome["status"] == "completed", outcome
    assert desk.read("report/check.txt") == "ok: 1 claims\n"
    assert "report.md:3: the paragraph cites no passage" in json.dumps(model.received, ensure_ascii=False)
