"""`agent skills validate` checks very many files one by one without keeping them."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

AGENT = Path(sys.executable).parent / "agent"
BODY = "words of a long body\n" * 1500


def measure(folder: Path, *flags: str) -> int:
    """Return the command's peak memory in kilobytes."""
    with (folder.parent / "out").open("wb") as out:
        process = subprocess.Popen([AGENT, "skills", "validate", str(folder), *flags], stdout=out, stderr=out)
        _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    assert process.returncode == 0
    return usage.ru_maxrss


def write_skills(root: Path, count: int) -> Path:
    for number in range(count):
        folder = root / f"skill-{number}"
        folder.mkdir(parents=True)
        text = f"---\nname: skill-{number}\ndescription: Does number {number}.\n---\n{number} {BODY}"
        (folder / "SKILL.md").write_text(text, encoding="utf-8")
    return root


@pytest.mark.slow
def test_memory_does_not_grow_with_the_number_of_skills(tmp_path: Path) -> None:
    few, many = write_skills(tmp_path / "few", 2), write_skills(tmp_path / "many", 600)

    # Six hundred bodies of 30 KB are 18 MB as text alone, and were kept twice.
    for flags in ((), ("--json",)):
        assert measure(many, *flags) - measure(few, *flags) < 15_000
