"""`agent skill test` and `agent skill run`, for authors and reviewers."""

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from metier.cli.main import run

SCRIPT = """\
# /// script
# requires-python = ">=3.12"
# ///
import argparse, json
parser = argparse.ArgumentParser()
parser.add_argument("--json", action="store_true")
parser.add_argument("--text", default="")
options = parser.parse_args()
print(json.dumps({"text": options.text}) if options.json else options.text)
"""


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    cache = os.environ.get("XDG_CACHE_HOME", str(Path.home() / ".cache"))
    for name in [name for name in os.environ if name.startswith(("AGENT_", "XDG_CONFIG"))]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", cache)  # prepared Pythons are found again
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")
    return tmp_path


@pytest.fixture
def judge(capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, Any]]:
    def call(*args: str) -> tuple[int, Any]:
        capsys.readouterr()
        code = run(["skill", "test", *args, "--json"])
        return code, json.loads(capsys.readouterr().out)

    return call


def write_skill(
    files: dict[str, str], *, front: str = "", body: str = "Text.\n", folder: str = ".agent/skills"
) -> Path:
    head = "name: notes\ndescription: Takes notes and finds them. Use it when a task is about notes.\n"
    path = Path(folder) / "notes"
    for name, text in {"SKILL.md": f"---\n{head}license: MIT\n{front}---\n{body}", **files}.items():
        (path / name).parent.mkdir(parents=True, exist_ok=True)
        (path / name).write_text(text)
    return path


def codes(report: dict[str, Any]) -> set[str]:
    return {problem["code"] for problem in report["problems"]}


def test_new_skill_is_strictly_valid_and_passes_its_test(judge: Callable[..., tuple[int, Any]]) -> None:
    assert run(["skill", "create", "fresh"]) == 0
    assert run(["skills", "validate", "--strict", ".agent/skills/fresh"]) == 0

    code, report = judge("fresh")

    assert (code, report["passed"], report["problems"]) == (0, True, [])
    assert [(trial["name"], trial["ok"]) for trial in report["trials"]] == [
        ("scripts/example.py --help", True),
        ("evals/evals.json case 1: example --json", True),
    ]
    assert 0 < report["tokens"]["catalog"] < 100


@pytest.mark.parametrize(
    ("script", "said"),
    [
        ("raise SystemExit(3)\n", "exit code 3"),
        ("import no_such_module_at_all\n", "no_such_module_at_all"),
        ("", "It prints nothing"),
    ],
)
def test_script_without_help_is_an_error(judge: Callable[..., tuple[int, Any]], script: str, said: str) -> None:
    write_skill({"scripts/a.py": script})

    code, report = judge("notes")

    assert code == 1
    (trial,) = report["trials"]
    assert said in trial["message"]


def test_calls_in_entrypoints_and_cases_must_return_json(
    judge: Callable[..., tuple[int, Any]],
) -> None:
    evals = '[{"prompt": "Say it", "expected": "Said", "script": "b", "args": []}]'
    plain = "import sys\nprint('usage: b [--json]' if '--help' in sys.argv else 'no JSON')\n"
    write_skill(
        {"scripts/a.py": SCRIPT, "scripts/b.py": plain, "evals/evals.json": evals},
        front="entrypoint: a --text hi\n",
    )

    code, report = judge("notes")

    outcome = {trial["name"]: (trial["ok"], trial["message"]) for trial in report["trials"]}
    assert code == 1
    assert outcome["entrypoint a --json"] == (True, "")
    assert not outcome["evals/evals.json case 1: b --json"][0]
    assert "Expected JSON output, got: no JSON" in outcome["evals/evals.json case 1: b --json"][1]


def test_placeholder_that_only_a_run_can_fill_is_reported_and_not_executed(
    judge: Callable[..., tuple[int, Any]],
) -> None:
    write_skill({"scripts/a.py": SCRIPT}, front='entrypoint: {script: a, args: ["--text", "{previous}"]}\n')

    code, report = judge("notes")

    assert code == 0
    assert report["trials"][1]["warning"] == "not tried: {previous} is only known during a run"


def test_toolset_that_cannot_be_imported_is_an_error(judge: Callable[..., tuple[int, Any]]) -> None:
    write_skill({"toolsets/x.py": "1 / 0\n"}, front="toolsets: [toolsets.x:X]\n")

    code, report = judge("notes")

    assert code == 1
    assert report["trials"][0]["name"] == "toolset toolsets.x:X"
    assert "division by zero" in report["trials"][0]["message"]


def test_review_reports_broken_links_and_unreferenced_files(judge: Callable[..., tuple[int, Any]]) -> None:
    body = "[Guide](references/guide.md) and [gone](references/gone.md#top), `scripts/missing.py --json`.\n\n"
    body += "[Web](https://example.org/x.md) [anchor](#here)\n\n```\n[code](references/in-code.md)\n```\n"
    write_skill({"references/guide.md": "Guide", "references/lonely.md": "Lonely"}, body=body)

    code, report = judge("notes", "--no-run")

    said = {(problem["code"], problem["message"]) for problem in report["problems"]}
    assert code == 1
    assert ("link_broken", "The link to 'references/gone.md' is broken") in said
    assert ("file_missing", "The text names 'scripts/missing.py', which does not exist") in said
    assert ("file_unnamed", "The body does not mention 'references/lonely.md'") in said
    assert {code for code, _ in said} == {"link_broken", "file_missing", "file_unnamed", "no_evals"}


def test_review_checks_description_license_length_and_hidden_characters(
    judge: Callable[..., tuple[int, Any]],
) -> None:
    folder = Path(".agent/skills/notes")
    folder.mkdir(parents=True)
    text = "---\nname: notes\ndescription: You get notes.\n---\n" + "A line of text that goes on.\u200b\n" * 600
    (folder / "SKILL.md").write_text(text)

    code, report = judge("notes")

    assert code == 1
    assert codes(report) >= {
        "description_short",
        "description_person",
        "no_license",
        "body_long",
        "hidden_character",
        "no_evals",
    }


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("{", "not_json"),
        ('"x"', "evals_shape"),
        ('{"cases_of_mine": []}', "evals_shape"),
        ("[]", "evals_empty"),
        ('{"evals": [1]}', "not_a_mapping"),
        ('{"evals": [{"expected": "x"}]}', "missing_prompt"),
        ('[{"prompt": "x"}]', "evals_expected"),
        ('[{"prompt": "x", "expected": "y", "files": ["evals/none.txt"]}]', "evals_file"),
        ('[{"prompt": "x", "expected": "y", "files": ["../../../../etc/passwd"]}]', "evals_file"),
        ('[{"prompt": "x", "expected": "y", "script": 3}]', "bad_value"),
        ('[{"prompt": "x", "expected": "y", "id": 1}, {"query": "x", "expected": "y", "id": 1}]', "evals_id"),
        ('{"skill_name": "other", "evals": [{"prompt": "x", "expected": "y"}]}', "evals_name"),
    ],
)
def test_unusable_evals_are_reported(judge: Callable[..., tuple[int, Any]], text: str, code: str) -> None:
    write_skill({"evals/evals.json": text})

    assert code in codes(judge("notes", "--no-run")[1])


@pytest.mark.parametrize(
    "text",
    [
        '{"skill_name": "notes", "evals": [{"id": 1, "prompt": "x", "expected_output": "y", "files": []}]}',
        '[{"query": "x", "should_trigger": true}]',
        '{"skills": ["notes"], "query": "x", "files": ["a.txt"], "expected_behavior": ["y"]}',
        '\ufeff{"evals": [{"prompt": "x", "assertions": ["y"]}]}',
    ],
)
def test_evals_in_the_format_of_other_tools_are_accepted(judge: Callable[..., tuple[int, Any]], text: str) -> None:
    write_skill({"evals/evals.json": text, "evals/a.txt": "a", "evals/results.json": '{"passed": 3}'})

    code, report = judge("notes", "--no-run")

    assert (code, report["problems"]) == (0, [])


def test_no_code_of_an_untrusted_skill_is_executed(judge: Callable[..., tuple[int, Any]], home: Path) -> None:
    marker = home / "ran"
    write_skill({"scripts/a.py": f"open({str(marker)!r}, 'w')\n"}, folder=str(home / ".agent/skills"))

    code, report = judge("notes")
    by_path, _ = judge(str(home / ".agent/skills/notes"))

    assert (code, by_path, report["trials"]) == (1, 1, [])
    assert "not_trusted" in codes(report)
    assert run(["skill", "run", "notes", "a"]) == 5
    assert not marker.exists()


def test_script_runs_in_the_same_way_as_for_a_model(capsys: pytest.CaptureFixture[str]) -> None:
    path = write_skill({"scripts/a.py": SCRIPT})

    assert run(["skill", "run", "Notes", "A", "--", "--text", "hi"]) == 0
    assert json.loads(capsys.readouterr().out) == {
        "success": True,
        "result": {"text": "hi"},
        "message": "Executed a script",
    }
    assert run(["skill", "run", "--text", f"./{path}", "a.py", "--text", "hi"]) == 0
    assert json.loads(capsys.readouterr().out)["result"] == "hi\n"
    assert run(["skill", "run", "notes", "a", "--help"]) == 0
    assert json.loads(capsys.readouterr().out)["result"]["usage"].startswith("a.py [-h]")
    assert run(["skill", "run", "notes"]) == 0
    assert [script["name"] for script in json.loads(capsys.readouterr().out)["result"]["notes"]] == ["a"]


@pytest.mark.parametrize(
    ("script", "code"),
    [("none", "not_found"), ("../a", "invalid_name"), ("/abs", "invalid_name"), (".hidden", "invalid_name")],
)
def test_failed_run_prints_the_answer_with_its_code(capsys: pytest.CaptureFixture[str], script: str, code: str) -> None:
    write_skill({"scripts/a.py": SCRIPT})

    assert run(["skill", "run", "notes", script]) == 1
    assert json.loads(capsys.readouterr().out)["error"] == code


def test_arguments_beyond_the_limits_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    write_skill({"scripts/a.py": SCRIPT})

    assert run(["skill", "run", "notes", "a", "--", *(["x"] * 101)]) == 1
    assert json.loads(capsys.readouterr().out)["error"] == "args_too_large"
