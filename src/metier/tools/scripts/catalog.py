"""The scripts of the active skills by name. Looks at file names only; nothing is opened or run."""

from collections import Counter
from collections.abc import Sequence

from metier.definitions.names import canonical_name
from metier.definitions.skills.scripts import FOLDER, Script, discover_scripts
from metier.skills.package import SkillPackage
from metier.tools.scripts.contract import ScriptFailed, parse_script_name, parse_skill_name


class ScriptCatalog:
    """Finds skills and scripts as a model writes their names: any case, `_` for `-`, with or without `.py`."""

    def __init__(self, packages: Sequence[SkillPackage]) -> None:
        self._packages: dict[str, SkillPackage] = {}
        for package in packages:
            self._packages.setdefault(canonical_name(package.definition.name), package)
        # The name of its folder too, unless it could mean several.
        folders = Counter(canonical_name(package.folder.name) for package in packages)
        for package in packages:
            self._packages.setdefault(canonical_name(package.definition.id), package)
            if folders[canonical_name(package.folder.name)] == 1:
                self._packages.setdefault(canonical_name(package.folder.name), package)
        self._shown = tuple(dict.fromkeys(package.definition.name for package in packages))

    def list_scripts(self, skill_name: str | None) -> dict[str, tuple[Script, ...]]:
        names = self._shown if skill_name is None else (self.find_package(skill_name).definition.name,)
        listed = {name: discover_scripts(self.get_package(name).definition) for name in names}
        return listed if skill_name is not None else {name: scripts for name, scripts in listed.items() if scripts}

    def find_package(self, skill_name: str) -> SkillPackage:
        """Raises `ScriptFailed`: `invalid_name` or `not_found`."""
        package = self._packages.get(parse_skill_name(skill_name))
        if package is None:
            raise ScriptFailed("not_found", f"Skill {skill_name!r} not loaded or installed")
        return package

    def get_package(self, name: str) -> SkillPackage:
        return self._packages[canonical_name(name)]

    def find_script(self, skill_name: str, script_name: str) -> tuple[SkillPackage, Script]:
        """Raises `ScriptFailed`: `invalid_name`, `not_found`, or `permission_denied` for a symbolic link."""
        file_name = parse_script_name(script_name)
        package = self.find_package(skill_name)
        for script in discover_scripts(package.definition):
            if script.name == file_name:
                return package, script
        if (package.folder / FOLDER / file_name).is_symlink():
            raise ScriptFailed("permission_denied", f"Script {script_name!r} is a symbolic link")
        raise ScriptFailed("not_found", f"Script {script_name!r} not found in skill {package.definition.name!r}")
