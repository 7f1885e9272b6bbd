"""Every skill that can be found, by its front matter only: name, description, and what is wrong with it.

Bodies are not kept; `skill.load_skill` reads one when it is wanted. A catalog is a value: load it again to see changes.
"""

from abc import abstractmethod
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple, cast, override

from msgspec import Struct

from metier.definitions.names import canonical_name
from metier.definitions.problems import Problem
from metier.definitions.skills.naming import find_called, hint_skill
from metier.definitions.skills.sources import SkillSource
from metier.errors import SkillNotFound


class CatalogSkill(Struct, frozen=True, kw_only=True):
    """What stage 0 knows of a skill."""

    id: str
    name: str
    """Its ID where another skill of its source has the same name."""
    description: str
    path: str
    """Of its `SKILL.md`."""
    source: SkillSource
    version: str | None = None
    license: str | None = None
    tags: tuple[str, ...] = ()
    allowed_tools: tuple[str, ...] = ()
    digest: str = ""
    """Of what its file held when it was read."""
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


class SkillContent(NamedTuple):
    """Which skill a file is, and what it held: what an index of the catalog is found by."""

    id: str
    name: str
    digest: str


class LateSequence[T](Sequence[T]):
    """Values that are made when they are asked for. Equal to a tuple of the same values."""

    @override
    def __eq__(self, other: object) -> bool:
        if not isinstance(other, tuple | LateSequence):
            return NotImplemented
        return tuple(self) == tuple(cast("Sequence[object]", other))

    __hash__ = None  # pyright: ignore[reportAssignmentType] - as a list has none


class LateSkills(LateSequence[CatalogSkill]):
    """The skills of a kept catalog. What most questions need of them is known without making any."""

    @property
    @abstractmethod
    def contents(self) -> Sequence[SkillContent]: ...
    @property
    @abstractmethod
    def sources(self) -> frozenset[SkillSource]: ...
    @abstractmethod
    def keep(self, whole: frozenset[SkillSource], wanted: Callable[[CatalogSkill], bool]) -> "LateSkills": ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Catalog:
    skills: tuple[CatalogSkill, ...] | LateSkills = ()
    """One for each name, sorted by it."""
    shadowed: Sequence[CatalogSkill] = ()
    """Those whose name another skill has taken."""
    problems: Sequence[Problem] = ()
    """Of every file, of folders, and of names that stand twice."""
    _by_name: dict[str, CatalogSkill] = field(default_factory=dict[str, CatalogSkill], repr=False, compare=False)
    """Filled when a skill is first looked for."""

    @property
    def contents(self) -> Sequence[SkillContent]:
        """One for each skill, in their order."""
        if isinstance(self.skills, LateSkills):
            return self.skills.contents
        return [SkillContent(skill.id, skill.name, skill.digest) for skill in self.skills]

    @property
    def sources(self) -> frozenset[SkillSource]:
        """Those that one of the skills comes from."""
        if isinstance(self.skills, LateSkills):
            return self.skills.sources
        return frozenset(skill.source for skill in self.skills)

    def keep(self, whole: Iterable[SkillSource], wanted: Callable[[CatalogSkill], bool]) -> "Catalog":
        """The same catalog with all skills of some sources, and of the others only some."""
        sources = frozenset(whole)
        if isinstance(self.skills, LateSkills):
            skills = self.skills.keep(sources, wanted)
        else:
            skills = tuple(skill for skill in self.skills if skill.source in sources or wanted(skill))
        return Catalog(skills=skills, shadowed=self.shadowed, problems=self.problems)

    def find(self, name: str) -> CatalogSkill | None:
        """By name in any case, `_` like `-`; else by ID."""
        return self._names().get(canonical_name(name)) or find_called(self.skills, name)

    def get(self, name: str) -> CatalogSkill:
        """Like `find`. Raises `SkillNotFound` with the nearest name."""
        found = self.find(name)
        if found is None:
            hint = hint_skill(name, self._names()) or "Run `agent skills list` to see them all"
            raise SkillNotFound(f"No skill is called {name!r}", hint=hint)
        return found

    def _names(self) -> dict[str, CatalogSkill]:
        if not self._by_name:
            self._by_name.update((skill.canonical, skill) for skill in self.skills)
        return self._by_name
