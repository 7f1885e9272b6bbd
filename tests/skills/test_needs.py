"""Dependencies between skills: `check`, `add`, `contracts` and a run report the same for the same folders."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from metier.cli.main import run

if TYPE_CHECKING:
    from tests.skills.conftest import Machine

REPORT = """---
name: report
description: Writes the report of a quarter.
{needs}
---
# Report
"""
IMPL = "def execute(context):\n    return {'outputs': {'summary': 'the report is written'}}\n"
TABLES = "---\nname: tables\ndescription: Draws tables.\n---\n# Tables\n"
NEEDS = ("depends_on: [tables]", "depends_on: Tables", "contract: {depends_on: [tables]}")


@pytest.fixture
def report(make_folder: Callable[..., Path]) -> Callable[[str], Path]:
    return lambda needs: make_folder("report", **{"SKILL.md": REPORT.format(needs=needs), "impl.py": IMPL})


@pytest.fixture
def tell(machine: Machine, capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, str]]:
    """Run a command and return exit code and output."""
    del machine

    def ask(*args: str) -> tuple[int, str]:
        capsys.readouterr()
        code = run([*args])
        captured = capsys.readouterr()
        return code, captured.out + captured.err

    return ask


def place(machine: Machine, folder: Path) -> None:
    shutil.copytree(folder, machine.workspace / ".agent" / "skills" / folder.name)


def prepare(machine: Machine, folder: Path, *, state: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Bring the required skill into one of its possible states."""
    if state == "absent":
        return
    if state == "changed":
        assert machine.agent("add", str(folder), "--yes").code == 0
        (machine.home.root / "tables" / "SKILL.md").write_text(TABLES + "Other bytes.\n")
    else:
        assert machine.agent("add", str(folder), "--no-trust" if state == "untrusted" else "--yes").code == 0
    if state != "not enabled":
        monkeypatch.setenv("AGENT_SKILLS", "tables")


@pytest.mark.parametrize("needs", NEEDS)
@pytest.mark.parametrize(
    ("state", "reason"),
    [
        ("absent", "is not there"),
        ("untrusted", "is not trusted"),
        ("changed", "changed since it was trusted"),
        ("not enabled", "is not enabled"),
        ("usable", ""),
    ],
)
def test_check_add_and_run_agree_on_a_required_skill(
    machine: Machine,
    make_folder: Callable[..., Path],
    report: Callable[[str], Path],
    tell: Callable[..., tuple[int, str]],
    monkeypatch: pytest.MonkeyPatch,
    *,
    needs: str,
    state: str,
    reason: str,
) -> None:
    folder = report(needs)
    prepare(machine, make_folder("tables", **{"SKILL.md": TABLES}), state=state, monkeypatch=monkeypatch)
    place(machine, folder)
    # What lies beside the added skill is offered, which is another test.
    alone = folder.parent.parent / "alone" / "report"
    shutil.copytree(folder, alone)

    checked = tell("check")
    validated = tell("validate")
    contracts = tell("skills", "contracts")
    ran = tell("run", "--provider", "offline", "write the report of the quarter")
    added = tell("skill", "add", str(alone), "--yes")

    said = f"'tables', which {reason}"
    if not reason:
        assert [code for code, _ in (checked, validated, contracts, ran, added)] == [0, 0, 0, 0, 0]
        assert "the report is written" in ran[1]
        assert not any("'tables', which" in text for _, text in (checked, validated, contracts, ran, added))
        return
    assert [code for code, _ in (checked, validated, contracts, ran, added)] == [1, 1, 0, 1, 0]
    assert "the report is written" not in ran[1]
    for _, text in (checked, validated, contracts, ran):
        assert said in text
    # Adding is for this machine, and what is enabled is for a workspace: it says how the skill is enabled anyway.
    assert (said in added[1]) == (state != "not enabled")
    way = {
        "untrusted": "agent skill trust tables",
        "changed": "agent skill trust tables",
        "not enabled": "AGENT_SKILLS",
    }
    for _, text in (checked, validated) if state in way else ():
        assert way[state] in text


@pytest.mark.parametrize(("state", "code"), [("absent", 1), ("untrusted", 0), ("usable", 0)])
def test_an_unusable_optional_skill_is_reported(
    *,
    machine: Machine,
    make_folder: Callable[..., Path],
    tell: Callable[..., tuple[int, str]],
    monkeypatch: pytest.MonkeyPatch,
    state: str,
    code: int,
) -> None:
    """`skills` limits the callable skills: a missing one is an error, an unusable one a warning."""
    folder = make_folder("caller", **{"SKILL.md": "---\nname: caller\ndescription: Calls.\nskills: [tables]\n---\n"})
    prepare(machine, make_folder("tables", **{"SKILL.md": TABLES}), state=state, monkeypatch=monkeypatch)
    place(machine, folder)

    validated = tell("validate")
    alone = folder.parent.parent / "alone" / "caller"
    shutil.copytree(folder, alone)
    added = tell("skill", "add", str(alone), "--yes")

    assert (validated[0], added[0]) == (code, 0)
    assert ("tables" in validated[1]) == (state != "usable")
    assert ("'tables', which" in added[1]) == (state != "usable")
