"""Loads the catalog: the front matter of every skill, from its file or from a cache."""

from collections.abc import Sequence
from pathlib import Path

from msgspec.structs import replace

from metier.definitions.files.walk import FoundDefinition, Walk
from metier.definitions.problems import Problem
from metier.definitions.skills.catalog import Catalog, CatalogSkill
from metier.definitions.skills.catalog_cache import (
    CachedCatalog,
    CatalogCache,
    ParsedFile,
    Seen,
    digest_content,
    stamp_of,
)
from metier.definitions.skills.skill import parse_once
from metier.definitions.skills.skill_file import FILE_NAME, MAX_FILE_BYTES, misnamed, read_skill_file
from metier.definitions.skills.skill_names import list_shared_names
from metier.definitions.skills.sources import SkillSource


def load_catalog(sources: Sequence[SkillSource], *, cache_folder: Path | None = None) -> Catalog:
    """Read the front matter of every skill in the sources, in order of precedence. Unreadable files become problems."""
    if cache_folder is None:
        return _read_catalog(sources, None, Seen())
    kept = CachedCatalog(cache_folder, sources)
    catalog = kept.load()
    if catalog is None:
        seen = Seen()
        catalog = _read_catalog(sources, cache_folder, seen)
        kept.save(catalog, seen)
    return catalog


def _read_catalog(sources: Sequence[SkillSource], cache_folder: Path | None, seen: Seen) -> Catalog:
    collector = _Collector()
    for source in sources:
        cache = CatalogCache(cache_folder, source.folder) if cache_folder else None
        collector.add(_read_source(source, cache, seen=seen, problems=collector.problems))
        if cache:
            cache.save()
    return collector.build()


def _read_source(
    source: SkillSource, cache: CatalogCache | None, *, seen: Seen, problems: list[Problem]
) -> list[CatalogSkill]:
    walk = Walk(source.folder, FILE_NAME, within=source.within, folders=[] if cache else None)
    skills: list[CatalogSkill] = []
    for found in walk:
        stamp = stamp_of(found.stat)
        parsed = cache.find(found.path, stamp) if cache else None
        if parsed is None:
            parsed = _parse_file(found, source)
            if cache:
                cache.keep(found.path, stamp, parsed)
        seen.files.append((found.path, stamp))
        problems.extend(parsed.problems)
        if parsed.skill is not None:
            # The cache is per folder; the same folder can be a source of another kind.
            skills.append(replace(parsed.skill, source=source))
    problems.extend(walk.problems)
    seen.add_walk(walk)
    return skills


def _parse_file(found: FoundDefinition, source: SkillSource) -> ParsedFile:
    file = Path(found.path)
    problems = misnamed(file)
    data = read_skill_file(file, limit=MAX_FILE_BYTES, within=found.within)
    if isinstance(data, Problem):
        return ParsedFile(None, (*problems, data))
    reading = parse_once(data, file=file, id=found.id, own=source.is_own)
    problems = (*problems, *reading.problems)
    skill = reading.skill
    if skill is None:
        return ParsedFile(None, problems)
    return ParsedFile(
        CatalogSkill(
            id=found.id,
            name=skill.name,
            description=skill.description,
            path=found.path,
            source=source,
            version=skill.version,
            license=skill.license,
            tags=skill.tags,
            allowed_tools=skill.allowed_tools,
            digest=digest_content(data),
            problems=problems,
        ),
        problems,
    )


class _Collector:
    """Assigns each name to the first skill that has it. If skills of one source share a name, their IDs are used."""

    def __init__(self) -> None:
        self.problems: list[Problem] = []
        self._added: list[CatalogSkill] = []
        self._by_name: dict[str, CatalogSkill] = {}
        self._shadowed: list[CatalogSkill] = []

    def add(self, skills: list[CatalogSkill]) -> None:
        self._added += skills

    def build(self) -> Catalog:
        kinds = {skill.source.kind for skill in self._added}
        shared = {kind: list_shared_names(s for s in self._added if s.source.kind == kind) for kind in kinds}
        for skill in self._added:
            self._give_name(replace(skill, name=skill.id) if skill.canonical in shared[skill.source.kind] else skill)
        by_name = {name: self._by_name[name] for name in sorted(self._by_name)}
        return Catalog(
            skills=tuple(by_name.values()),
            shadowed=tuple(self._shadowed),
            problems=tuple(self.problems),
        )

    def _give_name(self, skill: CatalogSkill) -> None:
        winner = self._by_name.setdefault(skill.canonical, skill)
        # Two sources can be the same folder, whose skills don't hide themselves.
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
