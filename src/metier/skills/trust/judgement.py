"""May the code of a skill run? Decided from the bytes on disk now, never from what was true at an earlier time."""

from metier.errors import SkillError, SkillNotTrusted
from metier.skills.package import SkillPackage
from metier.skills.trust.digest import digest_tree

TRUSTED_BY_LOCATION = ("bundled", "workspace", "directory")
"""Shipped with Metier, or part of the project that the person runs it in."""

TRUSTED_UNREAD = frozenset({"workspace", "directory"})
"""Skills of these sources are trusted without a review of their bytes."""


def is_trusted(package: SkillPackage) -> bool:
    """Reads the whole folder for installed skills: call it at load, and again right before something is executed."""
    if package.is_withheld:
        return False
    if package.source in TRUSTED_BY_LOCATION:
        return True
    if package.trusted_digest is None:
        return False
    try:
        return digest_tree(package.folder).tree == package.trusted_digest
    except SkillError:
        # A folder that holds a link or cannot be read is not what was trusted.
        return False


def check_trusted(package: SkillPackage) -> None:
    """Raises `SkillNotTrusted`, which says whether the skill was never trusted or its bytes changed since."""
    if is_trusted(package):
        return
    name = package.definition.name
    if package.is_withheld:
        raise SkillNotTrusted(
            f"Skill {name!r} came with this folder, which came from elsewhere and which you have not trusted",
            hint="Read what the folder brings, then run `agent trust`",
        )
    if package.trusted_digest is None:
        raise SkillNotTrusted(
            f"Skill {name!r} is not trusted",
            hint=f"Read it, then run `agent skill trust {name}`",
        )
    raise refuse_changed(package)


def refuse_changed(package: SkillPackage) -> SkillNotTrusted:
    name = package.definition.name
    return SkillNotTrusted(
        f"Skill {name!r} changed since it was trusted",
        hint=f"`agent skill verify {name}` lists what changed; review it, then run `agent skill trust {name}`",
    )
