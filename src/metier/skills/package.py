"""A skill package on this machine: what its SKILL.md says, where it lies, and which bytes the user trusted."""

from pathlib import Path
from typing import Literal

from metier.dataclass import dataclass
from metier.definitions.skills.skill import SkillDefinition

type PackageSource = Literal["bundled", "user", "installed", "workspace", "directory"]
"""Shipped with Metier; put into the home folder by hand; installed by `agent skill add`; in the workspace; in a folder
named by `--skills-dir`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SkillPackage:
    definition: SkillDefinition
    folder: Path
    source: PackageSource
    trusted_digest: str | None = None
    """The tree hash that a person said yes to; only bytes with this hash may run."""
    commit: str | None = None
    """The full commit it was fetched from."""
    is_withheld: bool = False
    """It came with an untrusted clone: it can be read, and nothing of it runs."""
