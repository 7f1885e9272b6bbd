"""The index of the skills on this machine, for commands and for runs: by what their files hold, kept on disk.

Bodies are read when no index of exactly these contents is kept.
"""

import hashlib
import json
import re
from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple, Protocol

from metier.definitions.problems import Problem
from metier.definitions.skills.catalog import Catalog, CatalogSkill
from metier.definitions.skills.catalog_cache import digest_content
from metier.definitions.skills.skill import SkillDefinition
from metier.definitions.skills.skill_file import MAX_FILE_BYTES, read_skill_file
from metier.definitions.text.front_matter import read_body, read_front_matter
from metier.routing.cache import load_index, save_index
from metier.routing.index import build_ordered_tables
from metier.routing.ranking import RoutingIndex
from metier.routing.skill import RoutableSkill

MAX_BODY_CHARACTERS = 100_000
"""What is indexed of one body; instructions are never that long, and a data dump says nothing new."""
WORTH_KEEPING = 64
"""Skills from which on an index is kept on disk; a smaller one is built in less time than its file takes."""
KEPT_IN_MEMORY = 8

_CODE_BLOCK = re.compile(r"^(```|~~~).*?^\1[ \t]*$", re.MULTILINE | re.DOTALL)


class DescribedSkill(Protocol):
    """What a skill of the catalog and one that was loaded whole have in common."""

    @property
    def id(self) -> str: ...
    @property
    def name(self) -> str: ...
    @property
    def description(self) -> str: ...
    @property
    def tags(self) -> tuple[str, ...]: ...


class _Source(NamedTuple):
    """One skill before its body is read. They are compared by name, then by ID."""

    name: str
    id: str
    digest: str
    """Of its `SKILL.md`."""
    number: int
    """Its place among the skills that are indexed."""


class _FileChanged(Exception):
    """A file no longer holds what the catalog says, so its index must not be kept under the old name."""


def open_index(catalog: Catalog, *, cache_folder: Path | None = None) -> RoutingIndex:
    """The index of a catalog, kept in `cache_folder` by the contents of its files."""
    ordered = sorted(
        _Source(content.name, content.id, content.digest, number) for number, content in enumerate(catalog.contents)
    )
    try:
        return _open(ordered, lambda number: _load_unchanged(catalog.skills[number]), cache_folder)
    except _FileChanged:
        return _build(ordered, lambda number: load_routable(catalog.skills[number]))


def open_index_of(skills: Iterable[SkillDefinition], *, cache_folder: Path | None = None) -> RoutingIndex:
    """The same for skills that were loaded whole: the same contents have the same index."""
    listed = list(skills)
    ordered = sorted(
        _Source(skill.name, skill.id, digest_content(skill.data), number) for number, skill in enumerate(listed)
    )
    return _open(ordered, lambda number: build_routable(listed[number], body=listed[number].body), cache_folder)


def load_routable(skill: CatalogSkill) -> RoutableSkill:
    """The skill with its body; a body that cannot be read any more is empty."""
    data = _read(skill)
    return build_routable(skill, body="" if data is None else read_front_matter(data).body)


def build_routable(skill: DescribedSkill, *, body: str) -> RoutableSkill:
    """A skill as it is ranked, for commands and for runs: code blocks and what goes beyond the limit are left out."""
    text = body[:MAX_BODY_CHARACTERS]
    return RoutableSkill(
        id=skill.id,
        name=skill.name,
        description=skill.description,
        tags=skill.tags,
        body=_CODE_BLOCK.sub("\n", text) if "```" in text or "~~~" in text else text,
    )


def _load_unchanged(skill: CatalogSkill) -> RoutableSkill:
    data = _read(skill)
    if data is None or digest_content(data) != skill.digest:
        raise _FileChanged
    # The same content as the catalog was read from: where nothing was wrong with it, its fields need no second look.
    return build_routable(skill, body=read_front_matter(data).body if skill.problems else read_body(data))


def _read(skill: CatalogSkill) -> bytes | None:
    data = read_skill_file(skill.file, limit=MAX_FILE_BYTES, within=skill.source.within or skill.source.folder)
    return None if isinstance(data, Problem) else data


def _open(ordered: Sequence[_Source], load: Callable[[int], RoutableSkill], cache_folder: Path | None) -> RoutingIndex:
    fingerprint = _find_fingerprint(ordered)
    memory = _find_memory(fingerprint)
    folder = cache_folder if len(ordered) >= WORTH_KEEPING else None
    if memory.index is None and folder is not None:
        memory.index = load_index(folder, fingerprint)
    if memory.index is None:
        memory.index = _build(ordered, load)
        if folder is not None:
            save_index(folder, fingerprint, memory.index)
    return memory.index


def _build(ordered: Sequence[_Source], load: Callable[[int], RoutableSkill]) -> RoutingIndex:
    return RoutingIndex(build_ordered_tables(load(source.number) for source in ordered))


class _Memory:
    """The place of one index in this process: its runs mostly have the same catalog."""

    index: RoutingIndex | None = None


@lru_cache(maxsize=KEPT_IN_MEMORY)
def _find_memory(_fingerprint: str) -> _Memory:
    return _Memory()


def _find_fingerprint(ordered: Sequence[_Source]) -> str:
    contents = json.dumps([(source.id, source.name, source.digest) for source in ordered])
    return hashlib.blake2b(contents.encode(), digest_size=16).hexdigest()
