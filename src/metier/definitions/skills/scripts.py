"""Scripts and reference files of a skill. Finds them, but doesn't run anything."""

import os
from fnmatch import fnmatchcase
from pathlib import Path

from msgspec import Struct

from metier.definitions.names import canonical_script_name
from metier.definitions.problems import Problem
from metier.definitions.skills.skill import SkillDefinition, get_field_line
from metier.definitions.text.headings import first_paragraph, parse_sections
from metier.errors import InvalidName

FOLDER = "scripts"
REFERENCES_FOLDER = "references"
MAX_REFERENCES = 500
MAX_TITLE_CHARACTERS = 100
_TITLE_BYTES = 4_096
IMPL_FILE = "impl.py"
"""The code of a callable skill; see `capabilities`."""


class Script(Struct, frozen=True):
    name: str
    """Canonical name: lower case, with `.py`."""
    path: Path


def discover_scripts(skill: SkillDefinition) -> tuple[Script, ...]:
    """Return the scripts of a skill, sorted by name: the listed ones, else every `scripts/*.py` that is not ignored.

    Symbolic links, dot files, folders and invalid names are skipped. If file names differ only in case, the first in
    byte order is used.
    """
    found: dict[str, Script] = {}
    for file_name in _plain_files(skill.folder / FOLDER):
        script = _as_script(skill, file_name)
        if script is not None:
            found.setdefault(script.name, script)
    return tuple(found[name] for name in sorted(found))


class ReferenceFile(Struct, frozen=True):
    """A file that the model can read on demand."""

    path: str
    """Path for the model, relative to the skill's folder."""
    title: str
    """First heading or paragraph; empty for a binary file."""
    bytes: int


def list_references(skill: SkillDefinition) -> tuple[ReferenceFile, ...]:
    """Return the files below `references/`, sorted by path, without symbolic links and dot files."""
    found: list[ReferenceFile] = []
    for folder, folders, files in os.walk(skill.folder / REFERENCES_FOLDER):
        # `os.walk` follows no links, except for the folder that it starts in.
        if Path(folder).is_symlink():
            return ()
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        paths = [Path(folder, name) for name in files if not name.startswith(".")]
        found += [_read_reference(path, skill.folder) for path in paths if path.is_file() and not path.is_symlink()]
        if len(found) >= MAX_REFERENCES:
            break
    return tuple(sorted(found, key=lambda file: file.path)[:MAX_REFERENCES])


def _read_reference(path: Path, root: Path) -> ReferenceFile:
    name = path.relative_to(root).as_posix()
    try:
        with path.open("rb") as stream:
            head = stream.read(_TITLE_BYTES)
        size = path.stat().st_size
    except OSError:
        return ReferenceFile(path=name, title="", bytes=0)
    # Git recognizes binary files in the same way.
    text = "" if b"\0" in head else head.decode("utf-8", "replace")
    headings = parse_sections(text)
    title = headings[0].text if headings else first_paragraph(text)
    return ReferenceFile(path=name, title=" ".join(title.split())[:MAX_TITLE_CHARACTERS], bytes=size)


def list_missing_scripts(skill: SkillDefinition) -> tuple[str, ...]:
    """Return the listed scripts that do not exist."""
    there = {script.name for script in discover_scripts(skill)} if skill.scripts else set[str]()
    return tuple(listed for listed in skill.scripts or () if f"{listed.lower().removesuffix('.py')}.py" not in there)


def report_missing_scripts(skill: SkillDefinition) -> tuple[Problem, ...]:
    """Report an error for each listed script that doesn't exist; runs don't load such a skill."""
    missing = list_missing_scripts(skill)
    if missing and not (skill.folder / FOLDER).is_dir():
        return (_describe_missing(skill, f"The folder {FOLDER!r} is missing", missing[0]),)
    return tuple(_describe_missing(skill, f"The listed script {name!r} is missing", name) for name in missing)


def _describe_missing(skill: SkillDefinition, message: str, script: str) -> Problem:
    return Problem(
        severity="error",
        code="missing_script",
        message=message,
        file=str(skill.file),
        line=get_field_line(skill, "scripts"),
        hint=f"Add '{FOLDER}/{script.removesuffix('.py')}.py', or remove it from 'scripts'",
        subject=skill.name,
    )


def find_impl(skill: SkillDefinition) -> Path | None:
    """Return the skill's `impl.py` if it is a regular file."""
    path = skill.folder / IMPL_FILE
    return path if path.is_file() and not path.is_symlink() else None


def is_capability(skill: SkillDefinition) -> bool:
    """Return True if the skill is callable: it has an `impl.py`."""
    return find_impl(skill) is not None


def _plain_files(folder: Path) -> list[str]:
    # A linked folder could expose any folder of the machine.
    if folder.is_symlink():
        return []
    try:
        with os.scandir(folder) as entries:
            return sorted(entry.name for entry in entries if entry.is_file(follow_symlinks=False))
    except OSError:
        return []


def _as_script(skill: SkillDefinition, file_name: str) -> Script | None:
    if not file_name.lower().endswith(".py") or file_name.startswith("."):
        return None
    try:
        name = canonical_script_name(file_name)
    except InvalidName:
        return None
    if not _is_offered(skill, file_name, name):
        return None
    return Script(name=name, path=skill.folder / FOLDER / file_name)


def _is_offered(skill: SkillDefinition, file_name: str, name: str) -> bool:
    if skill.scripts is not None:
        return name in {listed.lower().removesuffix(".py") + ".py" for listed in skill.scripts}
    return not any(fnmatchcase(file_name, pattern) for pattern in skill.scripts_ignore)
