"""Skill files as published: links stored as text, markers and colons without a space, rules as ends."""

import json
from pathlib import Path
from typing import Any

import pytest

from metier.cli.main import run

ODD = {
    "marker glued to the first field": "---name: foo\ndescription: Does things.\n---\n# Title\n",
    "no space behind the colon": "---\nname: foo\ndescription:Does things.\n---\n# Title\n",
    "no space behind any colon": "---\nname:foo\ndescription:Does things.\n---\n# Title\n",
    "a rule as the end": "---\nname: foo\ndescription: Does things.\n\n------\n\n# Title\n\n---\n\nMore.\n",
}


def validate(folder: Path, capsys: pytest.CaptureFixture[str], *flags: str) -> tuple[int, dict[str, Any]]:
    code = run(["skills", "validate", str(folder), "--json", *flags])
    (verdict,) = json.loads(capsys.readouterr().out)
    return code, verdict


@pytest.mark.parametrize("text", ODD.values(), ids=ODD.keys())
def test_a_readable_description_is_not_lost(tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str) -> None:
    (tmp_path / "foo").mkdir()
    (tmp_path / "foo/SKILL.md").write_text(text, encoding="utf-8")

    assert run(["skills", "inspect", str(tmp_path / "foo"), "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    code, verdict = validate(tmp_path / "foo", capsys)
    strictly, _ = validate(tmp_path / "foo", capsys, "--strict")

    assert (shown["name"], shown["description"]) == ("foo", "Does things.")
    assert verdict["problems"]
    assert (code, strictly) == (0, 1)


@pytest.mark.parametrize("target", ["../../../x/SKILL.md", "../shared/skills/review/SKILL.md\n", "skills/a/skill.md"])
def test_a_link_that_was_stored_as_text_is_not_a_skill(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], target: str
) -> None:
    (tmp_path / "foo").mkdir()
    (tmp_path / "foo/SKILL.md").write_text(target, encoding="utf-8")

    code, verdict = validate(tmp_path / "foo", capsys)

    (problem,) = verdict["problems"]
    assert (code, verdict["loaded"], problem["code"]) == (1, False, "link_as_text")
    assert target.strip() in problem["message"]


def test_strict_mode_accepts_one_file_name(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "foo").mkdir()
    (tmp_path / "foo/SKILL.MD").write_text("---\nname: foo\ndescription: Does things.\n---\n", encoding="utf-8")

    assert validate(tmp_path / "foo", capsys)[0] == 0
    assert validate(tmp_path / "foo", capsys, "--strict")[0] == 1
