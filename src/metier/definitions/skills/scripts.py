"""Which scripts a skill offers. Looks at names and file types only; nothing is read or run."""

import os
from fnmatch import fnmatchcase
from pathlib import Path

from metier.dataclass import dataclass
from metier.definitions.names import canonical_script_name
from metier.definitions.skills.skill import SkillDefinition
from metier.errors import InvalidName

FOLDER = "scripts"
IMPL_FILE = "impl.py"
"""The code of a skill that can be called with inputs; see the capabilities room."""


@dataclass(frozen=True, slots=True)
class Script:
    name: str
    """Canonical: lower case, with `.py`."""
    path: Path


def discover_scripts(skill: SkillDefinition) -> tuple[Script, ...]:
    """The scripts of a skill, sorted by name: the listed ones, else every `scripts/*.py` that is not ignored.

    Symbolic links, dot files, folders and names that are not plain are left out. Of two files whose names differ
    only in case the first in byte order is taken.
    """
    found: dict[str, Script] = {}
    for file_name in _plain_files(skill.folder / FOLDER):
        script = _as_script(skill, file_name)
        if script is not None:
            found.setdefault(script.name, script)
    return tuple(found[name] for name in sorted(found))


def find_missing_scripts(skill: SkillDefinition) -> tuple[str, ...]:
    """The listed scripts that are not there, as they are listed."""
    there = {script.name for script in discover_scripts(skill)} if skill.scripts else set[str]()
    return tuple(listed for listed in skill.scripts or () if f"{listed.lower().removesuffix('.py')}.py" not in there)


def find_impl(skill: SkillDefinition) -> Path | None:
    """The skill's `impl.py`, if it is a file of its own."""
    path = skill.folder / IMPL_FILE
    return path if path.is_file() and not path.is_symlink() else None


def is_capability(skill: SkillDefinition) -> bool:
    """It can be called with inputs: it has an `impl.py`."""
    return find_impl(skill) is not None


def _plain_files(folder: Path) -> list[str]:
    # The folder itself must be the skill's own: a linked one could list any place of the machine.
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
