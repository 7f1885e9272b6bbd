"""The catalog of skills: names, descriptions and problems from their front matter.

It doesn't contain bodies; `skill.load_skill` reads one on demand. A catalog is immutable: load it again to see changes.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path

from msgspec import Struct

from metier.definitions.names import canonical_name
from metier.definitions.problems import Problem
from metier.definitions.skills.skill_names import find_called, hint_skill
from metier.definitions.skills.sources import SkillSource
from metier.errors import SkillNotFound


class CatalogSkill(Struct, frozen=True, kw_only=True):
    """Front matter of a skill in the catalog."""

    id: str
    name: str
    """Its ID if another skill of the same source has the same name."""
    description: str
    path: str
    """Path of its `SKILL.md`."""
    source: SkillSource
    version: str | None = None
    license: str | None = None
    tags: tuple[str, ...] = ()
    allowed_tools: tuple[str, ...] = ()
    digest: str = ""
    """Digest of its file's content."""
    problems: tuple[Problem, ...] = ()

    @property
    def canonical(self) -> str:
        return canonical_name(self.name)

    @property
    def file(self) -> Path:
        return Path(self.path)

    @property
    def folder(self) -> Path:
        return Path(self.path).parent


# A dataclass, because a Struct can't leave the index out of its `repr` and of comparisons.
@dataclass(frozen=True, slots=True, kw_only=True)
class Catalog:
    skills: tuple[CatalogSkill, ...] = ()
    """One skill per name, sorted by name."""
    shadowed: tuple[CatalogSkill, ...] = ()
    """Skills that are hidden by another skill of the same name."""
    problems: tuple[Problem, ...] = ()
    """Problems of files, folders and duplicate names."""
    _by_name: dict[str, CatalogSkill] = field(default_factory=dict[str, CatalogSkill], repr=False, compare=False)
    """Index by name, built on the first lookup."""

    @property
    def sources(self) -> frozenset[SkillSource]:
        """Sources that have at least one of the skills."""
        return frozenset(skill.source for skill in self.skills)

    def keep(self, whole: Iterable[SkillSource], wanted: Callable[[CatalogSkill], bool]) -> "Catalog":
        """Return a catalog with all skills of the sources in `whole` and the `wanted` ones of the others."""
        sources = frozenset(whole)
        skills = tuple(skill for skill in self.skills if skill.source in sources or wanted(skill))
        return Catalog(skills=skills, shadowed=self.shadowed, problems=self.problems)

    def find(self, name: str) -> CatalogSkill | None:
        """Find a skill by name, else by ID. Case is ignored, and `_` equals `-`."""
        return self._names().get(canonical_name(name)) or find_called(self.skills, name)

    def get(self, name: str) -> CatalogSkill:
        """Get a skill by name or ID. Raises `SkillNotFound` with the nearest name as a hint."""
        found = self.find(name)
        if found is None:
            hint = hint_skill(name, self._names()) or "Run `agent skills list` to list skills"
            raise SkillNotFound(f"No skill is called {name!r}", hint=hint)
        return found

    def _names(self) -> dict[str, CatalogSkill]:
        if not self._by_name:
            self._by_name.update((skill.canonical, skill) for skill in self.skills)
        return self._by_name
