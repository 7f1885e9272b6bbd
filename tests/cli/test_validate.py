import json
from pathlib import Path

import pytest

from metier.cli.main import run


@pytest.fixture
def workspace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    home, work = tmp_path / "home", tmp_path / "work"
    home.mkdir()
    (work / ".agent").mkdir(parents=True)
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.chdir(work)
    return work


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")


def right_project(root: Path) -> None:
    write(
        root / "agents/team/builder/AGENT.md", "---\nname: Builder\nskills: [inherit, notes]\ntasks: [daily]\n---\nB\n"
    )
    write(root / "skills/notes/SKILL.md", "---\nname: notes\ndescription: Takes notes.\n---\n")
    write(root / "tasks/daily/TASK.md", "---\nname: Daily\nagent: team/builder\nnext: two.md\n---\nDo.\n")
    write(root / "tasks/daily/two.md", "---\nskills: [Notes]\n---\nThen.\n")


@pytest.mark.parametrize("base", [".agent", ".nanobot"])
def test_a_valid_project_passes(workspace: Path, capsys: pytest.CaptureFixture[str], base: str) -> None:
    right_project(workspace / base)

    assert run(["validate"]) == 0

    out, err = capsys.readouterr()
    assert out == ""
    assert err == "Checked 1 agent, 1 skill, 1 task\n"


def test_the_project_can_be_an_argument(workspace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    right_project(workspace / "sub/.agent")

    assert run(["validate", "sub", "--json"]) == 0

    checked = json.loads(capsys.readouterr().out)
    assert [(item["kind"], item["id"], item["loaded"]) for item in checked] == [
        ("agent", "team/builder", True),
        ("task", "daily", True),
        ("skill", "notes", True),
    ]
    assert run(["validate", "sub/.agent"]) == 0
    assert run(["validate", "absent"]) == 2


def test_dangling_references_are_found_even_in_invalid_definitions(
    workspace: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    right_project(workspace / ".agent")
    write(workspace / ".agent/agents/x/AGENT.md", "---\nname: X\nmodle: m\nskills:\n  - nots\ntasks: [dayly]\n---\n")
    write(workspace / ".agent/tasks/y/TASK.md", "---\nname: Y\nagent: team/bilder\nnext: gone.md\n---\nDo it.\n")

    code = run(["validate", "--json"])

    checked = json.loads(capsys.readouterr().out)
    problems = {item["id"]: [(each["code"], each["line"]) for each in item["problems"]] for item in checked}
    assert code == 1
    assert problems["x"] == [("unknown_key", 3), ("unknown_skill", 5), ("unknown_task", 6)]
    assert problems["y"] == [("next_missing", 4), ("unknown_agent", 3)]


def test_ids_that_differ_only_in_case_or_unicode_form_are_equal(
    workspace: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("Caf\u00e9", "cafe\u0301"):
        write(workspace / f".agent/agents/{name}/AGENT.md", "---\nname: A\n---\n")

    assert run(["validate"]) == 1
    assert "duplicate_id" in capsys.readouterr().out


def test_own_skills_follow_the_specification_and_shared_ones_on_request(
    workspace: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write(workspace / ".claude/skills/theirs/SKILL.md", "---\nname: Theirs\ndescription: d\nskills: [x]\n---\n")

    assert run(["validate"]) == 0
    assert run(["validate", "--strict"]) == 1

    write(workspace / ".agent/skills/ours/SKILL.md", "---\nname: Ours\ndescription: d\n---\n")
    capsys.readouterr()
    assert run(["validate"]) == 1
    assert "name_case" in capsys.readouterr().out


def test_extension_fields_are_not_errors_in_own_skills(workspace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(workspace / ".agent/skills/x/SKILL.md", "---\nname: x\ndescription: d\nversion: 1.0.0\ntags: [a]\n---\n")

    assert run(["validate"]) == 0
    assert capsys.readouterr().out == ""
    assert run(["validate", "--strict"]) == 0
    assert "extension_field" in capsys.readouterr().out
