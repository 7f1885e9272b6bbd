"""Where skills come from, and who wins when two have one name. Looks at nothing on disk."""

from pathlib import Path
from typing import Literal

from msgspec import Struct

from metier import version

type SourceKind = Literal["bundled", "user", "workspace", "folder"]

PRECEDENCE: tuple[SourceKind, ...] = ("folder", "workspace", "bundled", "user")
"""Of two skills with one name the one from the earlier source is used.

A folder that was asked for hides the workspace's skills of the same name, the workspace hides bundled and user skills.
Bundled skills are not hidden by user skills: what is installed cannot take the place of what is trusted.
"""

WORKSPACE_FOLDERS = (".agent", ".nanobot")
"""Where the definitions of a project live; the first is ours."""
OWN_SKILL_FOLDERS = (".agent/skills", ".nanobot/skills")
SKILL_FOLDERS = (*OWN_SKILL_FOLDERS, ".agents/skills", ".claude/skills")
"""Where a project keeps skills; the last two are shared with other tools."""
USER_FOLDERS = (".agent/skills", ".agents/skills")


class SkillSource(Struct, frozen=True):
    kind: SourceKind
    folder: Path
    within: Path | None = None
    """No link in it is followed to a place outside of this folder; without it, outside of its own."""

    @property
    def is_own(self) -> bool:
        """True if its skills are the workspace's own."""
        is_listed = self.kind in ("workspace", "folder")
        return is_listed and self.within is not None and is_own_folder(self.folder, self.within)


def is_own_folder(folder: Path, workspace: Path) -> bool:
    """Return True if a skill folder is the workspace's own: inside it and not shared with other tools."""
    shared = [workspace / name for name in SKILL_FOLDERS if name not in OWN_SKILL_FOLDERS]
    return folder.is_relative_to(workspace) and folder not in shared


def get_bundled_folder() -> Path:
    """Where the skills lie that come with Metier."""
    return Path(version.__file__).parent / "bundled"


def build_search_path(
    workspace: Path, *, home: Path, skills_dir: Path | None = None, bundled: Path | None = None
) -> tuple[SkillSource, ...]:
    """The sources of skills, the one that wins first; folders of one kind in the order named above."""
    asked = ()
    if skills_dir is not None:
        asked = (SkillSource("folder", skills_dir, workspace if skills_dir.is_relative_to(workspace) else None),)
    users = [home / folder for folder in USER_FOLDERS]
    # In the home folder itself the two meet: what was installed there is no part of a project.
    own = [workspace / folder for folder in SKILL_FOLDERS if workspace / folder not in users]
    sources = (
        *asked,
        *(SkillSource("workspace", folder, workspace) for folder in own),
        SkillSource("bundled", bundled or get_bundled_folder()),
        *(SkillSource("user", folder) for folder in users),
    )
    return tuple(sorted(sources, key=lambda source: PRECEDENCE.index(source.kind)))
