"""`agent eval` from recordings: recorded once, replayed without a key or network, stale when something changed."""

import json
import os
import shutil
import sys
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast
from xml.etree import ElementTree as ET

import pytest
from model_server import ModelServer, calls, says
from run_workspace import Workspace

import metier
from metier.engine.entries.entry import render_entry
from metier.evals.cases import EvalCase
from metier.evals.eval_files import parse_evals
from metier.runtime.history.archive import load_archive

type Capture = pytest.CaptureFixture[str]
type Evaluate = Callable[..., tuple[int, Any]]

BUNDLED = Path(metier.__file__).parent / "bundled"
GREET_ONCE = calls("script_run", skill_name="greeter", script_name="greet")
CASES = {
    "skill_name": "greeter",
    "evals": [
        {
            "id": "hello",
            "prompt": "Greet Ada",
            "assertions": [
                {"check": "contains", "text": "Hello, Ada"},
                {"check": "tool_called", "tool": "script_run", "arguments": {"script_name": "greet"}},
                {"check": "file_equals", "path": "out.txt", "text": "done\n"},
                {"check": "no_policy_denial"},
                "It is polite",
            ],
        }
    ],
}
WRITE = calls("Write", path="out.txt", content="done\n")

_BLOCKED = [False]


def _refuse(event: str, args: tuple[object, ...]) -> None:
    if _BLOCKED[0] and event in ("socket.connect", "socket.getaddrinfo", "socket.bind"):
        raise AssertionError(f"{event} {args} in a replay")


sys.addaudithook(_refuse)


@contextmanager
def no_network() -> Generator[None]:
    """Make every connection and name lookup fail, including those of libraries."""
    _BLOCKED[0] = True
    try:
        yield
    finally:
        _BLOCKED[0] = False


@pytest.fixture
def skill(workspace: Workspace) -> Path:
    folder = workspace.folder / "skills/greeter"
    (folder / "evals").mkdir()
    (folder / "evals/evals.json").write_text(json.dumps(CASES, indent=1))
    return folder


@pytest.fixture
def evaluate(workspace: Workspace, capsys: Capture) -> Evaluate:
    def call(*args: str) -> tuple[int, Any]:
        capsys.readouterr()
        code = workspace.agent("eval", *args, "--json")
        return code, json.loads(capsys.readouterr().out)

    return call


@pytest.fixture
def recorded(skill: Path, model: ModelServer, evaluate: Evaluate) -> Path:
    model.follow(GREET_ONCE, WRITE, says("Hello, Ada!"))
    code, _ = evaluate("greeter", "--record")
    assert code == 0
    return skill


def read_case(file: Path, case_id: str) -> EvalCase:
    reading = parse_evals(file.read_text(), file="evals/evals.json")
    return next(case for case in reading.cases if case.id == case_id)


def statuses(results: Any) -> list[str]:
    return [row["status"] for result in results for row in result["rows"]]


def test_no_case_passes_without_a_recording_and_a_hint_explains_how_to_record(skill: Path, evaluate: Evaluate) -> None:
    del skill
    code, results = evaluate("greeter")

    assert (code, statuses(results)) == (1, ["missing"])
    assert "--record" in results[0]["rows"][0]["reasons"][0]


def test_a_recorded_case_is_replayed_without_model_or_network(
    recorded: Path, model: ModelServer, workspace: Workspace, evaluate: Evaluate
) -> None:
    asked = len(model.received)
    workspace.configure()  # nothing of the settings is needed, least of all the address of a model

    with no_network():
        code, results = evaluate("greeter")

    assert (code, statuses(results), len(model.received)) == (0, ["passed"], asked)
    verdicts = [grade["verdict"] for grade in results[0]["rows"][0]["grades"]]
    assert verdicts == ["passed", "passed", "passed", "passed", "not_checked"]
    assert not (workspace.folder / "out.txt").exists()
    assert recorded.is_dir()


def test_a_recording_has_no_machine_details_and_is_an_importable_run(
    recorded: Path, workspace: Workspace, capsys: Capture
) -> None:
    file = recorded / "evals/recordings/hello.run.gz"
    archive = load_archive(file)

    assert archive.started.workspace == "/eval/workspace"
    everything = b"".join(archive.blobs.values()) + b"".join(map(render_entry, archive.entries))
    assert str(workspace.folder.parent).encode() not in everything
    assert workspace.agent("runs", "import", str(file)) == 0
    assert workspace.agent("replay", archive.run_id, "--execute") == 0
    assert "Replay matches: " in capsys.readouterr().out


def test_a_changed_skill_is_stale_and_the_file_is_named(recorded: Path, evaluate: Evaluate) -> None:
    skill = recorded / "SKILL.md"
    skill.write_text(skill.read_text() + "\nMore words.\n")
    (recorded / "scripts/new.py").write_text("x = 1\n")

    code, results = evaluate("greeter")

    assert (code, statuses(results)) == (1, ["stale"])
    assert results[0]["rows"][0]["reasons"] == ["SKILL.md changed", "scripts/new.py is new"]


def test_a_changed_case_is_stale_and_a_changed_check_is_not(recorded: Path, evaluate: Evaluate) -> None:
    file = recorded / "evals/evals.json"
    file.write_text(file.read_text().replace("Hello, Ada", "Goodbye"))
    code, results = evaluate("greeter")
    assert (code, statuses(results)) == (1, ["failed"])
    assert results[0]["rows"][0]["grades"][0]["text"] == "contains: 'Goodbye'"

    file.write_text(file.read_text().replace("Greet Ada", "Greet Bob"))
    code, results = evaluate("greeter")

    assert (code, statuses(results)) == (1, ["stale"])
    assert "what case 'hello' asks changed" in results[0]["rows"][0]["reasons"][0]


def test_another_prompt_prefix_is_stale_and_the_layer_is_named(recorded: Path, evaluate: Evaluate) -> None:
    home = Path(os.environ["HOME"])
    (home / ".agent").mkdir(exist_ok=True)
    (home / ".agent/AGENTS.md").write_text("Be brief.\n")

    code, results = evaluate("greeter")

    assert recorded.is_dir()
    assert (code, statuses(results)) == (1, ["stale"])
    assert "layer 'project'" in results[0]["rows"][0]["reasons"][0]


def test_a_modified_recording_is_rejected(recorded: Path, evaluate: Evaluate) -> None:
    file = recorded / "evals/recordings/hello.run.gz"
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 0xFF
    file.write_bytes(bytes(data))

    code, results = evaluate("greeter")

    assert (code, statuses(results)) == (1, ["stale"])
    assert "cannot be used" in results[0]["rows"][0]["reasons"][0]


def test_a_broken_skill_fails_and_names_the_check(tmp_path: Path, evaluate: Evaluate) -> None:
    folder = tmp_path / "broken" / "workspace-inventory"
    shutil.copytree(BUNDLED / "workspace-inventory", folder)
    (folder / "scripts/inventory.py").write_text("import sys\nsys.exit('broken')\n")

    code, stale = evaluate(str(folder), "--case", "two-files")
    assert (code, stale[0]["rows"][0]["reasons"]) == (1, ["scripts/inventory.py changed"])
    code, failed = evaluate(str(folder), "--case", "two-files", "--record")
    again, replayed = evaluate(str(folder), "--case", "two-files")

    assert (code, again, statuses(failed), statuses(replayed)) == (1, 1, ["failed"], ["failed"])
    texts = [grade["text"] for grade in replayed[0]["rows"][0]["grades"] if grade["verdict"] == "failed"]
    assert texts == ["contains: '2 files'", "exit_code: 0"]


def test_the_bundled_skills_pass_their_evals_without_network(evaluate: Evaluate) -> None:
    names = sorted(path.parent.parent.name for path in BUNDLED.glob("*/evals/evals.json"))

    with no_network():
        code, results = evaluate(*(f"skill:{name}" for name in names))

    found = statuses(results)
    assert (code, set(found)) == (0, {"passed"}), [
        (result["target"], row["case_id"], row["reasons"])
        for result in results
        for row in result["rows"]
        if row["status"] != "passed"
    ]
    assert len(found) >= 50
    assert len(names) == 9


def test_a_threshold_counts_cases_that_were_not_checked_and_the_junit_report_skips_them(
    workspace: Workspace, recorded: Path, evaluate: Evaluate
) -> None:
    file = recorded / "evals/evals.json"
    cases = json.loads(file.read_text())
    cases["evals"].append({"id": "only-words", "prompt": "Greet Ada", "expected_output": "A greeting"})
    file.write_text(json.dumps(cases))
    for ending in ("run.gz", "json"):
        source = recorded / f"evals/recordings/hello.{ending}"
        copy = source.with_name(f"only-words.{ending}")
        shutil.copy(source, copy)
    note = json.loads(copy.read_text())
    copy.write_text(json.dumps({**note, "case": read_case(file, "only-words").digest}))

    codes = [evaluate("greeter", "--threshold", share)[0] for share in ("1", "0.5", "0.51")]
    _, results = evaluate("greeter", "--junit", "j.xml")

    assert statuses(results) == ["passed", "not_checked"]
    assert codes == [1, 0, 1]
    suite = ET.fromstring((workspace.folder / "j.xml").read_text())[0]
    assert [suite.get(name) for name in ("tests", "failures", "errors", "skipped")] == ["2", "0", "0", "1"]
    assert [[child.tag for child in case] for case in suite] == [[], ["skipped"]]


def test_reports_are_written_for_ci_and_for_the_viewer(recorded: Path, workspace: Workspace, capsys: Capture) -> None:
    file = recorded / "evals/evals.json"
    file.write_text(file.read_text().replace("Hello, Ada", "<script>x</script>"))
    here = workspace.folder

    code = workspace.agent("eval", "greeter", "--junit", "j.xml", "--html", "h.html", "--out", "out")

    assert code == 1
    assert "FAILED      hello" in capsys.readouterr().out
    suite = ET.fromstring((here / "j.xml").read_text())
    failure = suite.find("testsuite/testcase/failure")
    assert failure is not None
    assert (suite[0].get("failures"), failure.get("type")) == ("1", "contains")
    page = (here / "h.html").read_text()
    assert "<script>" not in page
    assert "&lt;script&gt;" in page
    grading = cast("dict[str, Any]", json.loads((here / "out/hello/grading.json").read_text()))
    assert grading["summary"] == {"passed": 3, "failed": 1, "total": 4, "pass_rate": 0.75}
    assert grading["expectations"][-1]["passed"] is False
    benchmark = json.loads((here / "out/benchmark.json").read_text())
    assert benchmark["runs"][0]["configuration"] == "with_skill"
    assert benchmark["run_summary"]["with_skill"]["pass_rate"]["mean"] == 0.75


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["nothing"], "Unknown skill, agent or task 'nothing'"),
        (["greeter", "--case", "helo"], "has no case 'helo'"),
        (["greeter", "--repeat", "2"], "need --live"),
        (["greeter", "--judge", "m"], "--judge needs --live or --record"),
        (["greeter", "--suggest"], "--suggest needs --triggers"),
        (["--resume", "x"], "matches 'x'"),
    ],
)
def test_usage_errors_are_reported_before_anything_runs(
    *, words: list[str], told: str, skill: Path, workspace: Workspace, capsys: Capture
) -> None:
    assert skill.is_dir()
    assert workspace.agent("eval", *words) == 2
    assert told in capsys.readouterr().err
