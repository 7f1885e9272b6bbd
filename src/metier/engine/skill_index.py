"""The skills that a run may use, with their search index and their text for the model. Reads files."""

from collections.abc import Callable, Sequence
from pathlib import Path

from msgspec import Struct

from metier.context.disclosure import Read, SkillText
from metier.definitions.names import canonical_name
from metier.definitions.problems import Problem
from metier.definitions.skills.scripts import discover_scripts
from metier.routing.catalog import open_index_of
from metier.routing.ranking import RoutingIndex
from metier.routing.skill import FoundSimilar, Similarities
from metier.skills.activation import find_package
from metier.skills.package import SkillPackage, list_files, read_file
from metier.skills.skill_trust import is_trusted

EVALS = "evals/"


class SkillIndex(Struct, frozen=True, kw_only=True):
    """Active packages by canonical name, and the index over them."""

    packages: dict[str, SkillPackage]
    index: RoutingIndex
    workspace: Path
    problems: tuple[Problem, ...] = ()
    """Reasons why skills are missing."""
    load_ms: float = 0
    """Milliseconds of loading; 0 if not measured."""
    similarities: Similarities | None = None
    """Finds skills by meaning; None if the settings configure no embeddings."""
    redact: Callable[[str], str] = str
    """Removes secrets from a request before `similarities` gets it."""

    async def get_similar(self, query: str) -> FoundSimilar:
        return await self.similarities.find(self.redact(query)) if self.similarities is not None else FoundSimilar()

    def find(self, name: str) -> SkillPackage | None:
        """Return a skill by name, or by ID."""
        return self.packages.get(canonical_name(name)) or find_package(self.packages.values(), name)

    def get(self, name: str) -> SkillPackage:
        found = self.find(name)
        assert found is not None, f"skill {name!r} was looked up before"
        return found

    def describe(self, names: Sequence[str]) -> list[tuple[str, str]]:
        """Return name and description of these skills, in this order, without unknown ones."""
        found = [package for name in names if (package := self.find(name)) is not None]
        return [(package.definition.name, package.definition.description) for package in found]

    def text(self, name: str) -> SkillText:
        package = self.get(name)
        definition = package.definition
        return SkillText(
            name=definition.name,
            description=definition.description,
            body=definition.body,
            folder=self._usable_folder(package),
            # Without evals: a model that reads them knows the expected answers.
            files=tuple(file.path for file in list_files(package.folder) if not file.path.startswith(EVALS)),
            scripts=tuple(script.name for script in discover_scripts(definition)),
            is_trusted=is_trusted(package),
        )

    def reader(self, name: str) -> Read:
        folder = self.get(name).folder
        return lambda path: read_file(folder, path)

    def _usable_folder(self, package: SkillPackage) -> str:
        """Return the folder, relative inside of the workspace: shorter, and the same on every machine."""
        if package.folder.is_relative_to(self.workspace):
            return package.folder.relative_to(self.workspace).as_posix()
        return str(package.folder)


def build_skill_index(
    packages: Sequence[SkillPackage],
    *,
    workspace: Path,
    problems: Sequence[Problem] = (),
    cache_folder: Path | None = None,
) -> SkillIndex:
    """Build the skill index of a run. `agent skills route` uses the same one."""
    index = open_index_of([package.definition for package in packages], cache_folder=cache_folder)
    by_name = {canonical_name(package.definition.name): package for package in packages}
    return SkillIndex(packages=by_name, index=index, workspace=workspace, problems=tuple(problems))
