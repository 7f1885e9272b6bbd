"""Write skills and definitions for tests."""

from collections.abc import Sequence
from pathlib import Path

from metier.definitions.problems import Problem
from metier.definitions.skills.skill import SkillDefinition, SkillReading


def write_skill(root: Path, name: str, text: str | bytes | None = None) -> Path:
    """Create a skill and return its folder; the default text is valid."""
    folder = root / name
    folder.mkdir(parents=True, exist_ok=True)
    content = f"---\nname: {folder.name}\ndescription: Does {folder.name}.\n---\nBody\n" if text is None else text
    data = content if isinstance(content, bytes) else content.encode("utf-8", "surrogatepass")
    (folder / "SKILL.md").write_bytes(data)
    return folder


def write_file(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    return path


def loaded(reading: SkillReading) -> SkillDefinition:
    assert reading.skill is not None, reading.problems
    return reading.skill


def found(problems: tuple[Problem, ...]) -> list[tuple[str, str, int | None]]:
    return [(problem.severity, problem.code, problem.line) for problem in problems]


def codes(problems: Sequence[Problem]) -> set[str]:
    return {problem.code for problem in problems}
