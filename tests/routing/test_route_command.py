"""`agent skills route`, as a person and as a program call it."""

import json
from pathlib import Path

import pytest

from metier.cli.main import run

SKILLS = {
    "pdf-tables": "Extract tables from PDF files",
    "code-review": "Review a pull request",
    "weather": "Forecast of rain for a city",
}


@pytest.fixture
def skills_dir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    for name, description in SKILLS.items():
        folder = tmp_path / "skills" / name
        folder.mkdir(parents=True)
        (folder / "SKILL.md").write_text(f"---\nname: {name}\ndescription: {description}\n---\nBody\n")
    return tmp_path / "skills"


def test_it_shows_score_name_and_matched_words(skills_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code = run(["skills", "route", "extrct the tables", "-k", "1", "--skills-dir", str(skills_dir)])

    out = capsys.readouterr().out
    assert code == 0
    assert out.count("\n") == 1
    score, name, *_ = out.split()
    assert float(score) > 55
    assert name == "pdf-tables"
    assert "tables in name+description" in out
    assert "extrct (read as extract) in description" in out


def test_json_has_every_candidate_with_its_reason(skills_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code = run(["skills", "route", "/weather", "--json", "--skills-dir", str(skills_dir), "-k", "2"])

    answer = json.loads(capsys.readouterr().out)
    assert code == 0
    assert answer["request"] == "/weather"
    assert answer["considered"] >= 3
    assert answer["candidates"][0] == {
        "skill_name": "weather",
        "id": "weather",
        "score": 100.0,
        "reason": "the request names it; weather in name",
        "named": True,
        "matched": [{"word": "weather", "fields": ["name"], "meant": None}],
    }


def test_a_second_call_reads_the_kept_index(skills_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = ["skills", "route", "review my pull request", "--json", "--skills-dir", str(skills_dir)]
    run(command)
    first = capsys.readouterr().out
    kept = list((skills_dir.parent / "cache" / "agent").glob("routing-*.index"))
    before = kept[0].stat().st_mtime_ns

    run(command)

    assert capsys.readouterr().out == first
    assert len(kept) == 1
    assert kept[0].stat().st_mtime_ns == before


def test_a_request_that_matches_nothing_says_so_on_stderr(skills_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code = run(["skills", "route", "zzzz", "-k", "1", "--skills-dir", str(skills_dir)])

    captured = capsys.readouterr()
    assert code == 0
    assert captured.out == ""
    assert "shares a word with this request" in captured.err


def test_a_folder_that_does_not_exist_is_wrong_usage(skills_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["skills", "route", "x", "--skills-dir", str(skills_dir / "none")]) == 2
    assert "does not exist" in capsys.readouterr().err
