"""The skills of this folder for the commands on skills: their folders, one scan of them, and the catalog."""

import os
from pathlib import Path

from msgspec import Struct
from msgspec.structs import replace

from metier.cli.shared.context import current_settings, current_workspace, home_folder
from metier.definitions.files.user_folders import get_cache_folder
from metier.definitions.problems import Problem
from metier.definitions.skills.catalog import Catalog
from metier.definitions.skills.catalog_loader import load_catalog
from metier.definitions.skills.skill_file import FILE_NAME, get_skill_file
from metier.definitions.skills.sources import (
    SkillSource,
    SourceKind,
    build_search_path,
    get_bundled_folder,
)
from metier.errors import UsageError
from metier.settings.sections import Settings
from metier.skills.activation import (
    Activation,
    FoundSkills,
    Selection,
    SkillRoots,
    activate,
    build_roots,
    get_packages,
    parse_selection,
)
from metier.skills.install.installed import Registry
from metier.skills.install.placement import find_registry
from metier.skills.workspace_trust import WorkspaceTrust

PROJECT: tuple[SourceKind, ...] = ("workspace", "folder")
"""Kinds of sources whose skills are always active."""


class SkillPlaces(Struct, frozen=True, kw_only=True):
    """The folders with skills, and the enabled packages."""

    roots: SkillRoots
    selection: Selection
    settings: Settings
    trust: WorkspaceTrust


def open_places(skills_dir: Path | None) -> SkillPlaces:
    """Read flag, environment and `agent.yaml`. Raises `ConfigError` if they are invalid."""
    loaded = current_settings(None, {})
    return build_places(skills_dir, loaded.settings, loaded.trust)


def build_places(skills_dir: Path | None, settings: Settings, trust: WorkspaceTrust) -> SkillPlaces:
    enabled = settings.skills.enabled
    return SkillPlaces(
        roots=build_roots(
            home=home_folder(),
            workspace=current_workspace(),
            bundled=get_bundled_folder(),
            directories=(_get_directory(skills_dir, settings),),
            trust=replace(trust, is_directory_named=trust.is_directory_named or skills_dir is not None),
        ),
        selection=parse_selection(enabled if isinstance(enabled, str) else ",".join(enabled)),
        settings=settings,
        trust=trust,
    )


class SkillListing(Struct, frozen=True, kw_only=True):
    """The result of one scan of the skills and packages here. The commands format it."""

    places: SkillPlaces
    found: FoundSkills
    activation: Activation
    registry: Registry
    damage: Problem | None
    """Why the registry cannot be used."""


def scan_skills(places: SkillPlaces) -> SkillListing:
    """Scan every skill that could be used here, once."""
    found = get_packages(places.roots)
    registry, damage = find_registry(places.roots.home)
    return SkillListing(
        places=places,
        found=found,
        activation=activate(found, places.selection),
        registry=registry,
        damage=damage,
    )


def open_catalog(places: SkillPlaces) -> Catalog:
    """Load the catalog of the user's skills in this folder, active or not."""
    (directory,) = places.roots.directories
    sources = build_search_path(current_workspace(), home=home_folder(), skills_dir=directory)
    return load_catalog(sources, cache_folder=cache_folder())


def open_active_catalog(places: SkillPlaces) -> Catalog:
    """Load the catalog that a run would have: the project's skills and the enabled packages."""
    # Without the project's folders: their skills need no activation and come from the catalog.
    packages = get_packages(replace(places.roots, workspace=(), directories=()))
    return keep_active(open_catalog(places), activate(packages, places.selection), places)


def keep_active(catalog: Catalog, activation: Activation, places: SkillPlaces) -> Catalog:
    # By folder, because the name of a package depends on its neighbors and on who installed it.
    enabled = {os.path.realpath(package.folder) for package in activation.packages}
    project = [source for source in catalog.sources if _is_project(source, places.roots)]
    return catalog.keep(project, lambda skill: os.path.realpath(skill.folder) in enabled)


def _is_project(source: SkillSource, roots: SkillRoots) -> bool:
    """Return whether a source is part of the project. A folder of packages is not, even if `--skills-dir` names it."""
    packages = [root.resolve() for root in (roots.home.root, *roots.user, roots.bundled) if root is not None]
    folder = source.folder.resolve()
    return source.kind in PROJECT and not any(folder.is_relative_to(root) for root in packages)


def find_named_folder(name: str) -> Path | None:
    """Find the folder that an argument names as a path; None for the name or ID of a skill.

    `frontend/review` may be both: it is a path only if the folder has a skill.
    """
    path = Path(name)
    folder = (path.parent if path.is_file() else path).resolve()
    if os.sep not in name and name not in (".", "..") and path.name != FILE_NAME:
        return None
    is_surely = path.is_absolute() or name.startswith(".")
    return folder if is_surely or not isinstance(get_skill_file(folder), Problem) else None


def cache_folder() -> Path:
    return get_cache_folder(os.environ, home_folder())


def _get_directory(skills_dir: Path | None, settings: Settings) -> Path:
    """Return the skills folder. That of the flag must exist; that of the settings may be missing."""
    if skills_dir is None:
        return current_workspace() / settings.skills.dir
    if not skills_dir.is_dir():
        raise UsageError(f"Folder {str(skills_dir)!r} does not exist", hint="Pass a folder with skills")
    return skills_dir
