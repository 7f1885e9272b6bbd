"""Where the commands of skills install to, and under which limits."""

import importlib
import os

from metier.cli.shared.context import current_directory, home_folder
from metier.definitions.names import canonical_name
from metier.definitions.skills.sources import find_bundled_folder
from metier.runtime.opening import open_host
from metier.skills.activation import SkillRoots, build_roots, find_packages
from metier.skills.install.operations import Installer, ServedSkill
from metier.skills.limits import MEGABYTE, InstallLimits
from metier.skills.source import McpSource
from metier.skills.trust.workspace_trust import find_trust

LIMITS = InstallLimits()


def open_roots() -> SkillRoots:
    home, workspace = home_folder(), current_directory()
    trust = find_trust(workspace, home=home, environ=os.environ)
    return build_roots(home=home, workspace=workspace, bundled=find_bundled_folder(), trust=trust)


def open_installer(max_files: int = LIMITS.max_files, max_megabytes: int = LIMITS.max_bytes // MEGABYTE) -> Installer:
    roots = open_roots()
    size = max_megabytes * MEGABYTE
    limits = InstallLimits(max_files=max_files, max_bytes=size, max_file_bytes=min(size, LIMITS.max_file_bytes))
    bundled = [package for package in find_packages(roots).packages if package.source == "bundled"]
    taken = frozenset(canonical_name(package.definition.name) for package in bundled)
    return Installer(home=roots.home, limits=limits, taken=taken, fetch_served=_fetch_served)


async def _fetch_served(source: McpSource) -> ServedSkill:
    """From a server of this workspace, which is loaded only for that."""
    place = open_host(current_directory(), environ=os.environ, home=home_folder(), config=None).host
    fetched: ServedSkill = await importlib.import_module("metier.runtime.served_skills").fetch_served(place, source)
    return fetched
