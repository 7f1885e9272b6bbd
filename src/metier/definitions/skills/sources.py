"""Sources of skills, and their precedence for skills of the same name. Reads nothing from disk."""

from pathlib import Path
from typing import Literal

from msgspec import Struct

from metier import version

type SourceKind = Literal["bundled", "user", "workspace", "folder"]

PRECEDENCE: tuple[SourceKind, ...] = ("folder", "workspace", "bundled", "user")
"""For skills of the same name, the earlier source takes precedence.

An explicitly given folder hides the workspace's skills, and the workspace hides bundled and user skills. User skills
don't hide bundled ones, because an installed skill must not replace a trusted one.
"""

WORKSPACE_FOLDERS = (".agent", ".nanobot")
"""Folders with the definitions of a project; the first is Metier's own."""
OWN_SKILL_FOLDERS = (".agent/skills", ".nanobot/skills")
SKILL_FOLDERS = (*OWN_SKILL_FOLDERS, ".agents/skills", ".claude/skills")
"""Folders with a project's skills; the last two are shared with other tools."""
USER_FOLDERS = (".agent/skills", ".agents/skills")


class SkillSource(Struct, frozen=True):
    kind: SourceKind
    folder: Path
    within: Path | None = None
    """Folder that links must not leave; by default the source's own."""

    @property
    def is_own(self) -> bool:
        """Return True if its skills are the workspace's own."""
        is_listed = self.kind in ("workspace", "folder")
        return is_listed and self.within is not None and is_own_folder(self.folder, self.within)


def is_own_folder(folder: Path, workspace: Path) -> bool:
    """Return True if a skill folder is the workspace's own: inside it and not shared with other tools."""
    shared = [workspace / name for name in SKILL_FOLDERS if name not in OWN_SKILL_FOLDERS]
    return folder.is_relative_to(workspace) and folder not in shared


def get_bundled_folder() -> Path:
    """Return the folder of the bundled skills."""
    return Path(version.__file__).parent / "bundled"


def build_search_path(
    workspace: Path, *, home: Path, skills_dir: Path | None = None, bundled: Path | None = None
) -> tuple[SkillSource, ...]:
    """Return the sources of skills in order of precedence."""
    asked = ()
    if skills_dir is not None:
        asked = (SkillSource("folder", skills_dir, workspace if skills_dir.is_relative_to(workspace) else None),)
    users = [home / folder for folder in USER_FOLDERS]
    # In the home folder the two are the same folder: installed skills are not part of a project.
    own = [workspace / folder for folder in SKILL_FOLDERS if workspace / folder not in users]
    sources = (
        *asked,
        *(SkillSource("workspace", folder, workspace) for folder in own),
        SkillSource("bundled", bundled or get_bundled_folder()),
        *(SkillSource("user", folder) for folder in users),
    )
    return tuple(sorted(sources, key=lambda source: PRECEDENCE.index(source.kind)))
