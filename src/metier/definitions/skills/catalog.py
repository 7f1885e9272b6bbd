"""Every skill that can be found, by its front matter only: name, description, and what is wrong with it.

Bodies are not kept; `skill.load_skill` reads one when it is wanted. A catalog is a value: load it again to see changes.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import field, replace
from pathlib import Path
from typing import cast

from metier.dataclass import dataclass
from metier.definitions.files.walk import FoundDefinition, Walk
from metier.definitions.names import canonical_name
from metier.definitions.problems import Problem, Severity
from metier.definitions.skills.catalog_cache import CatalogCache, Payload, digest_content, stamp_of
from metier.definitions.skills.naming import find_called, find_shared_names, hint_skill
from metier.definitions.skills.skill import SkillDefinition, parse_skill
from metier.definitions.skills.skill_file import FILE_NAME, MAX_FILE_BYTES, misnamed, read_skill_file
from metier.definitions.skills.sources import SkillSource
from metier.errors import SkillNotFound


@dataclass(frozen=True, slots=True, kw_only=True)
class CatalogSkill:
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Catalog:
    skills: tuple[CatalogSkill, ...] = ()
    """One for each name, sorted by it."""
    shadowed: tuple[CatalogSkill, ...] = ()
    """Those whose name another skill has taken."""
    problems: tuple[Problem, ...] = ()
    """Of every file, of folders, and of names that stand twice."""
    _by_name: dict[str, CatalogSkill] = field(default_factory=dict[str, CatalogSkill], repr=False)

    def keep(self, wanted: Callable[[CatalogSkill], bool]) -> "Catalog":
        """The same catalog with only some of its skills."""
        skills = tuple(skill for skill in self.skills if wanted(skill))
        by_name = {skill.canonical: skill for skill in skills}
        return Catalog(skills=skills, shadowed=self.shadowed, problems=self.problems, _by_name=by_name)

    def find(self, name: str) -> CatalogSkill | None:
        """By name in any case, `_` like `-`; else by ID."""
        return self._by_name.get(canonical_name(name)) or find_called(self.skills, name)

    def get(self, name: str) -> CatalogSkill:
        """Like `find`. Raises `SkillNotFound` with the nearest name."""
        found = self.find(name)
        if found is None:
            hint = hint_skill(name, self._by_name) or "Run `agent skills list` to see them all"
            raise SkillNotFound(f"No skill is called {name!r}", hint=hint)
        return found


def load_catalog(sources: Sequence[SkillSource], *, cache_folder: Path | None = None) -> Catalog:
    """Read the front matter of every skill in the sources, the source that wins first. Never stops at a bad file."""
    collector = _Collector()
    for source in sources:
        cache = CatalogCache(cache_folder, source.folder) if cache_folder else None
        collector.add(_read_source(source, cache, collector.problems))
        if cache:
            cache.save()
    return collector.build()


def _read_source(source: SkillSource, cache: CatalogCache | None, problems: list[Problem]) -> list[CatalogSkill]:
    walk = Walk(source.folder, FILE_NAME, within=source.within)
    skills: list[CatalogSkill] = []
    for found in walk:
        stamp = stamp_of(found.stat)
        payload = cache.find(found.path, stamp) if cache else None
        if payload is None:
            payload = _read_payload(found)
            if cache:
                cache.keep(found.path, stamp, payload)
        own = _unpack_problems(payload, found.path)
        problems.extend(own)
        if payload[0] is not None:
            skills.append(_unpack(payload, found, source=source, problems=own))
    problems.extend(walk.problems)
    return skills


def _read_payload(found: FoundDefinition) -> Payload:
    """What the cache keeps: the fields of the skill, or nothing, and the problems."""
    file = Path(found.path)
    problems = misnamed(file)
    data = read_skill_file(file, limit=MAX_FILE_BYTES, within=found.within)
    if isinstance(data, Problem):
        return [None, _pack_problems((*problems, data))]
    reading = parse_skill(data, file=file, id=found.id)
    return [
        _pack(reading.skill, digest_content(data)) if reading.skill else None,
        _pack_problems((*problems, *reading.problems)),
    ]


def _pack(skill: SkillDefinition, digest: str) -> list[object]:
    return [skill.name, skill.description, skill.version, skill.license, skill.tags, skill.allowed_tools, digest]


def _pack_problems(problems: Iterable[Problem]) -> list[object]:
    return [[problem.severity, problem.code, problem.message, problem.line, problem.hint] for problem in problems]


def _unpack_problems(payload: Payload, path: str) -> tuple[Problem, ...]:
    # The shape is that of `_pack_problems`; the cache gives back nothing else.
    raw = cast("list[tuple[Severity, str, str, int | None, str]]", payload[1])
    return tuple(
        Problem(severity=severity, code=code, message=message, file=path, line=line, hint=hint)
        for severity, code, message, line, hint in raw
    )


def _unpack(
    payload: Payload, found: FoundDefinition, *, source: SkillSource, problems: tuple[Problem, ...]
) -> CatalogSkill:
    # The shape is that of `_pack`; the cache gives back nothing else.
    name, description, version, license_, tags, tools, digest = cast(
        "tuple[str, str, str | None, str | None, list[str], list[str], str]", payload[0]
    )
    return CatalogSkill(
        id=found.id,
        name=name,
        description=description,
        path=found.path,
        source=source,
        version=version,
        license=license_,
        tags=tuple(tags),
        allowed_tools=tuple(tools),
        digest=digest,
        problems=problems,
    )


class _Collector:
    """Gives each name to the first skill that has it; those of one kind of source that share it get their IDs."""

    def __init__(self) -> None:
        self.problems: list[Problem] = []
        self._added: list[CatalogSkill] = []
        self._by_name: dict[str, CatalogSkill] = {}
        self._shadowed: list[CatalogSkill] = []

    def add(self, skills: list[CatalogSkill]) -> None:
        self._added += skills

    def build(self) -> Catalog:
        kinds = {skill.source.kind for skill in self._added}
        shared = {kind: find_shared_names(s for s in self._added if s.source.kind == kind) for kind in kinds}
        for skill in self._added:
            self._give_name(replace(skill, name=skill.id) if skill.canonical in shared[skill.source.kind] else skill)
        by_name = {name: self._by_name[name] for name in sorted(self._by_name)}
        return Catalog(
            skills=tuple(by_name.values()),
            shadowed=tuple(self._shadowed),
            problems=tuple(self.problems),
            _by_name=by_name,
        )

    def _give_name(self, skill: CatalogSkill) -> None:
        winner = self._by_name.setdefault(skill.canonical, skill)
        if winner is not skill and winner.path != skill.path:
            self._shadowed.append(skill)
            self._report(skill, winner)

    def _report(self, skill: CatalogSkill, winner: CatalogSkill) -> None:
        if winner.source == skill.source:
            code, message = "duplicate_name", f"Skill {skill.name!r} has the name of the one in '{winner.folder}'"
        else:
            code = "shadowed_skill"
            message = f"Skill {skill.name!r} is hidden by the {winner.source.kind} skill in '{winner.folder}'"
        self.problems.append(
            Problem(severity="warning", code=code, message=message, file=skill.path, line=1, hint="Rename one of them")
        )
