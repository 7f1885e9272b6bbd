"""`agent check` on selected and omitted packages, and on skills for another Metier version."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from metier.cli.main import run

if TYPE_CHECKING:
    from tests.skills.conftest import Machine, Repository

NEEDS_MORE = "---\nname: {name}\ndescription: Looks ahead.\nmin_agent_base_version: 99.0.0\n---\n"


def check(capsys: pytest.CaptureFixture[str]) -> tuple[int, str, str]:
    capsys.readouterr()
    code = run(["check"])
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def test_a_changed_selected_package_fails_the_check_with_a_trust_hint(
    machine: Machine, notes: Repository, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert machine.agent("add", notes.url, "--allow-file", "--yes").code == 0
    (machine.home.root / "notes" / "SKILL.md").write_text(
        "---\nname: notes\ndescription: Takes notes.\n---\nOther bytes.\n"
    )
    monkeypatch.setenv("AGENT_SKILLS", "notes")

    code, out, err = check(capsys)

    assert code == 1
    assert re.search(r"notes \(inactive\) - .*, changed since it was trusted", out)
    assert "agent skill trust notes" in err
    assert "export AGENT_SKILLS" not in err


def test_an_untrusted_selected_package_fails_the_check(
    machine: Machine, notes: Repository, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    added = machine.agent("add", notes.url, "--allow-file", "--no-trust")
    assert added.code == 0
    assert "To trust it: agent skills trust notes" in added.err
    assert check(capsys)[0] == 0
    monkeypatch.setenv("AGENT_SKILLS", "Notes")

    code, out, err = check(capsys)

    assert code == 1
    assert re.search(r"notes \(inactive\) - .*, not trusted", out)
    assert "Review it, then run: agent skills trust notes" in err


def test_a_workspace_skill_for_a_later_version_is_not_loaded(
    machine: Machine, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = machine.workspace / ".agent/skills/ahead"
    folder.mkdir(parents=True)
    (folder / "SKILL.md").write_text(NEEDS_MORE.format(name="ahead"))

    code, out, _ = check(capsys)
    assert run(["validate"]) == 1

    assert code == 1
    assert "Skill 'ahead' needs at least version 99.0.0" in out
    assert "[needs_version]" in capsys.readouterr().out


def test_fields_without_effect_cause_a_warning(machine: Machine, capsys: pytest.CaptureFixture[str]) -> None:
    folder = machine.workspace / ".agent/skills/odd"
    folder.mkdir(parents=True)
    head = 'name: odd\ndescription: Odd.\nversion: not-semver\npermissions:\n  env: ["*", "AB*", "ABC*"]\n'
    (folder / "SKILL.md").write_text(f"---\n{head}max_output_bytes: none\n---\n")

    run(["skills", "validate", str(folder)])

    told = capsys.readouterr().out
    assert "SKILL.md:4: warning: Version 'not-semver' is not of the form 1.2.3 [version_format]" in told
    assert "Pattern '*' of 'permissions.env' matches no variable [broad_pattern]" in told
    assert "Pattern 'AB*' of 'permissions.env'" in told
    assert "'ABC*'" not in told
    assert "Field 'max_output_bytes' must be a number above 0, not 'none' [bad_limit]" in told


def test_a_missing_toolset_file_is_named_by_its_path(machine: Machine, capsys: pytest.CaptureFixture[str]) -> None:
    folder = machine.workspace / ".agent/skills/tooled"
    folder.mkdir(parents=True)
    (folder / "SKILL.md").write_text("---\nname: tooled\ndescription: Tools.\ntoolsets: [toolsets.gone:Gone]\n---\n")

    code, out, _ = check(capsys)

    assert code == 1
    assert "The skill has no file 'toolsets/gone.py'" in out
    assert "_metier" not in out


def test_add_names_listed_scripts_that_are_missing(machine: Machine, make_folder: Callable[..., Path]) -> None:
    folder = make_folder("notes", **{"scripts/find.py": "print(1)\n"})
    text = "---\nname: notes\ndescription: Takes notes.\nscripts: [find, gone]\n---\n"
    (folder / "SKILL.md").write_text(text)

    added = machine.agent("add", str(folder), "--yes")

    assert added.code == 0
    assert "The listed script 'gone' is missing" in added.err
    assert "'find'" not in added.err


def test_a_skill_inside_an_installed_package_causes_no_warnings_later(
    machine: Machine, make_folder: Callable[..., Path], capsys: pytest.CaptureFixture[str]
) -> None:
    text = "---\nname: notes\ndescription: Takes notes.\n---\n"
    folder = make_folder("notes", **{"variants/short/SKILL.md": text, "variants/long/SKILL.md": text})
    assert machine.agent("add", str(folder), "--yes").code == 0
    capsys.readouterr()

    for command in (["skills", "list"], ["skills", "list", "--all"], ["check"]):
        assert run(command) == 0
        told = capsys.readouterr()
        assert "duplicate_name" not in told.err
        assert "shadowed_skill" not in told.err
    assert run(["check", "--json"]) == 0
    named = [each["name"] for each in json.loads(capsys.readouterr().out)["skills"] if "notes" in each["name"]]
    assert named == ["notes", "notes/variants/long", "notes/variants/short"]


def test_check_lists_active_skills_that_are_not_trusted(
    machine: Machine, notes: Repository, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert machine.agent("add", notes.url, "--allow-file", "--no-trust").code == 0
    monkeypatch.setenv("AGENT_SKILLS", "all-untrusted")

    code, out, _ = check(capsys)

    assert code == 0
    assert re.search(r"notes \(active\) - .*, not trusted", out)
    assert re.search(r"hello-extended \(active\) - 1 script, 1 toolset \[\w+\]$", out, re.MULTILINE)


def test_list_shows_version_commit_and_whether_a_skill_is_active(
    machine: Machine, notes: Repository, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    notes.commit({"SKILL.md": "---\nname: notes\ndescription: Takes notes.\nversion: 1.2.0\n---\n"})
    commit = notes.git("rev-parse", "HEAD").strip()
    assert machine.agent("add", notes.url, "--allow-file", "--yes").code == 0
    capsys.readouterr()

    run(["skills", "list", "--all"])
    inactive = capsys.readouterr().out
    monkeypatch.setenv("AGENT_SKILLS", "notes")
    run(["skills", "list"])

    assert f"notes  [installed]  1.2.0  {commit[:8]}  inactive  Takes notes.\n" in inactive
    assert f"notes  [installed]  1.2.0  {commit[:8]}  active  Takes notes.\n" in capsys.readouterr().out


@pytest.mark.parametrize("command", ["info", "show"])
def test_show_prints_the_repository_and_the_tools_of_a_skill(
    machine: Machine, make_folder: Callable[..., Path], capsys: pytest.CaptureFixture[str], command: str
) -> None:
    text = "---\nname: notes\ndescription: Takes notes.\nrepository: https://example.org/notes.git\n---\n"
    folder = make_folder("notes")
    (folder / "SKILL.md").write_text(text)
    machine.agent("add", str(folder), "--yes")
    capsys.readouterr()

    run(["skills", command, "notes"])
    assert "  Repository: https://example.org/notes.git\n" in capsys.readouterr().out
    run(["skills", command, "hello-extended"])
    assert "hello-extended.greet_in_language, hello-extended.greet_multiple" in capsys.readouterr().out
    run(["skills", command, "hello-extended", "--json"])
    assert "hello-extended.greet_multiple" in json.loads(capsys.readouterr().out)["tools"]


def test_validate_and_check_report_the_same_line_for_a_field(
    machine: Machine, capsys: pytest.CaptureFixture[str]
) -> None:
    file = Path(".agent/skills/notes/SKILL.md")
    file.parent.mkdir(parents=True)
    file.write_text("---\nname: notes\ndescription: d\nmetadata:\n  min_agent_base_version: 99.0.0\n---\n")

    code, out, _ = check(capsys)
    assert (code, "SKILL.md line 5" in out) == (1, True)
    for command in (["validate"], ["skills", "validate", str(file)]):
        assert run(command) != 0
        assert "SKILL.md:5: error: Skill 'notes' needs at least version 99.0.0" in capsys.readouterr().out

    file.write_text("---\nname: notes\ndescription: d\nscripts: 5\n---\n")
    code, out, _ = check(capsys)
    assert (code, "Load failed" in out) == (1, True)
    for command in (["validate"], ["skills", "validate", "--strict", str(file)]):
        assert run(command) != 0
        assert "SKILL.md:4: error: The " in capsys.readouterr().out
