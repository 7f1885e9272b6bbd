"""Which skill files a list of paths means, and how each of them reads."""

import os
from collections.abc import Iterator
from pathlib import Path

from metier.capabilities.checks.check import check_capability
from metier.dataclass import dataclass
from metier.definitions.files.walk import Walk
from metier.definitions.problems import Problem, has_errors
from metier.definitions.skills.skill import SkillReading, parse_once
from metier.definitions.skills.skill_file import FILE_NAME, MAX_FILE_BYTES, find_skill_file, misnamed, read_skill_file
from metier.errors import UsageError


@dataclass(frozen=True, slots=True)
class Verdict:
    path: str
    reading: SkillReading

    @property
    def failed(self) -> bool:
        return has_errors(self.reading.problems)


def judge_paths(paths: list[Path], *, strict: bool) -> Iterator[Verdict]:
    """A verdict for each skill: of a file, of a skill's folder, or of everything below a folder.

    Raises `UsageError` when a path does not exist.
    """
    for path in paths:
        if not os.path.lexists(path):
            raise UsageError(f"Path {str(path)!r} does not exist", hint="Give a skill's folder, or a folder of skills")
    for path in paths:
        yield from _judge(path, strict=strict)


def _judge(path: Path, *, strict: bool) -> Iterator[Verdict]:
    if not path.is_dir():
        yield Verdict(str(path), _read(path, strict=strict))
        return
    found = find_skill_file(path)
    is_skill = not isinstance(found, Problem)
    # Below a skill, what lies in its own parts is material, e.g. a template; in a collection every file counts.
    walk = Walk(path, FILE_NAME, everywhere=not is_skill)
    is_any = False
    for item in walk:
        is_any = True
        yield Verdict(_as_given(path, item.path), _read(Path(item.path), strict=strict, within=item.within))
    for problem in walk.problems:
        if problem.severity == "error":
            is_any = True
            yield Verdict(_as_given(path, problem.file), SkillReading(None, (problem,)))
    if not is_any and isinstance(found, Problem):
        yield Verdict(str(path), SkillReading(None, (found,)))


def _read(file: Path, *, strict: bool, within: Path | None = None) -> SkillReading:
    if file.is_symlink() and not file.exists():
        message = f"{file.name!r} is a link to nothing"
        problem = Problem(severity="error", code="dangling_link", message=message, file=str(file), line=1)
        return SkillReading(None, (problem,))
    data = read_skill_file(file, limit=MAX_FILE_BYTES, within=within)
    if isinstance(data, Problem):
        return SkillReading(None, (data,))
    # `SKILL.md` and `../SKILL.md` have a folder with a name too.
    reading = parse_once(data, file=file if file.parent.name not in ("", "..") else file.resolve(), strict=strict)
    promised = check_capability(reading.skill, strict=strict) if reading.skill else ()
    return SkillReading(reading.skill, (*misnamed(file, strict=strict), *reading.problems, *promised))


def _as_given(root: Path, path: str) -> str:
    """The path below the root as the caller wrote it."""
    return str(root / os.path.relpath(path, root.absolute()))
