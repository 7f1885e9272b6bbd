"""`agent skills route`, called by a user and by a program."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from metier.cli.main import run
from metier.routing.catalog import MIN_SKILLS
from metier.runtime.opened_host import open_host
from metier.runtime.workspace.skill_catalog import get_skills

pytestmark = pytest.mark.slow

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


def test_route_shows_score_name_and_matched_words(skills_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
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
        "similarity": None,
        "matched": [{"word": "weather", "fields": ["name"], "meant": None}],
    }


@pytest.mark.parametrize("named", ["home/.agent/skills", "home/.agent/skills/garden", "link"])
@pytest.mark.parametrize("enabled", ["none", "all-untrusted"])
def test_naming_a_package_folder_activates_none_of_its_packages(
    *, skills_dir: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, named: str, enabled: str
) -> None:
    home = skills_dir.parent / "home" / ".agent" / "skills"
    folder = home / "garden" / "water-plants"
    folder.mkdir(parents=True)
    (folder / "SKILL.md").write_text("---\nname: water-plants\ndescription: Water the plants\n---\nBody\n")
    (skills_dir.parent / "link").symlink_to(home)
    monkeypatch.setenv("AGENT_SKILLS", enabled)
    asked = skills_dir.parent / named

    assert run(["skills", "route", "water the plants", "--json", "--skills-dir", str(asked)]) == 0
    routed = [each["skill_name"] for each in json.loads(capsys.readouterr().out)["candidates"] if each["score"]]
    flags = {"skills.dir": str(asked)}
    host = open_host(skills_dir.parent, environ=os.environ, home=Path.home(), flags=flags, config=None).host
    used = [package.folder.resolve() for package in get_skills(host).packages]

    assert ("water-plants" in routed) == (folder in used) == (enabled == "all-untrusted")


def find_kept(cache: Path) -> list[tuple[Path, int]]:
    """Return the cached indexes with their inodes: a rewritten file has another one."""
    return [(file, file.stat().st_ino) for file in (cache / "agent").glob("routing-*.index")]


def test_a_large_catalog_is_indexed_once_for_the_command_and_for_runs(
    skills_dir: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AGENT_MODEL_PROVIDER", "offline")
    write_many(skills_dir, MIN_SKILLS)
    command = ["skills", "route", "review my pull request", "--json"]
    assert run(command) == 0
    first = capsys.readouterr().out
    kept = find_kept(skills_dir.parent / "cache")

    assert run(["run", "review my pull request"]) == 1  # no model, and the skill has no script
    capsys.readouterr()
    assert run(command) == 0

    assert capsys.readouterr().out == first
    assert len(kept) == 1
    assert find_kept(skills_dir.parent / "cache") == kept


def test_another_process_reads_the_cached_index_and_rebuilds_a_damaged_one(skills_dir: Path) -> None:
    write_many(skills_dir, MIN_SKILLS)
    cache = skills_dir.parent / "cache"
    command = [str(Path(sys.executable).parent / "agent"), "skills", "route", "review my pull request", "--json"]
    first = subprocess.run(command, capture_output=True, check=True, timeout=60).stdout
    kept = find_kept(cache)

    second = subprocess.run(command, capture_output=True, check=True, timeout=60).stdout
    untouched = find_kept(cache)
    kept[0][0].write_bytes(kept[0][0].read_bytes()[:-1] + b"x")
    third = subprocess.run(command, capture_output=True, check=True, timeout=60).stdout

    assert first == second == third
    assert untouched == kept
    assert find_kept(cache) != kept


def test_a_small_catalog_writes_no_cache_file(skills_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["skills", "route", "/weather", "--skills-dir", str(skills_dir)]) == 0

    assert capsys.readouterr().out.startswith(" 100.0  weather")
    assert find_kept(skills_dir.parent / "cache") == []


def write_many(folder: Path, count: int) -> None:
    for number in range(count):
        skill = folder / f"trade-{number}"
        skill.mkdir()
        text = f"---\nname: trade-{number}\ndescription: Craft number {number}\n---\nTurn wood.\n"
        (skill / "SKILL.md").write_text(text)


def test_a_request_that_matches_nothing_is_reported_on_stderr(
    skills_dir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code = run(["skills", "route", "zzzz", "-k", "1", "--skills-dir", str(skills_dir)])

    captured = capsys.readouterr()
    assert code == 0
    assert captured.out == ""
    assert "skills matches this request" in captured.err


def test_a_missing_folder_is_a_usage_error(skills_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["skills", "route", "x", "--skills-dir", str(skills_dir / "none")]) == 2
    assert "does not exist" in capsys.readouterr().err
