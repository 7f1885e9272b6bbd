"""The routing index of a catalog for commands and runs, cached on disk by the contents of the skill files.

Bodies are only read if there is no cached index for exactly these contents.
"""

import hashlib
import json
import re
from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple, Protocol, cast

from metier.definitions.files.whole_file import CacheFiles
from metier.definitions.problems import Problem
from metier.definitions.skills.catalog import Catalog, CatalogSkill
from metier.definitions.skills.catalog_cache import digest_content
from metier.definitions.skills.skill import SkillDefinition
from metier.definitions.skills.skill_file import MAX_FILE_BYTES, read_skill_file
from metier.definitions.text.front_matter import read_body, read_front_matter
from metier.routing.index import IndexTables, Postings, build_ordered_tables
from metier.routing.ranking import RoutingIndex
from metier.routing.skill import RoutableSkill

FORMAT = 7
MAX_FILES = 4
"""Maximum number of cached indexes; the oldest is deleted first."""


def load_index(folder: Path, fingerprint: str) -> RoutingIndex | None:
    """Load the cached index of exactly this catalog, or return None."""
    sections = _files(folder).read(fingerprint)
    return None if sections is None else RoutingIndex(_unpack(sections))


def save_index(folder: Path, fingerprint: str, index: RoutingIndex) -> None:
    """Cache an index. A folder that cannot be written is ignored."""
    _files(folder).write(fingerprint, _pack(index.tables))


def _files(folder: Path) -> CacheFiles:
    return CacheFiles(folder, "routing", FORMAT, MAX_FILES)


def _pack(tables: IndexTables) -> list[bytes]:
    return [
        json.dumps([tables.ids, tables.names, tables.by_name]).encode(),
        "\n".join(tables.words).encode(),
        "\n".join(tables.forms).encode(),
        array("i", tables.forms.values()).tobytes(),
        tables.pair_starts.tobytes(),
        tables.pair_seconds.tobytes(),
        json.dumps(tables.name_words).encode(),
        tables.name_rarities.tobytes(),
        *(column.tobytes() for column in _columns(tables.postings)),
        *(column.tobytes() for column in _columns(tables.pairs)),
    ]


def _unpack(sections: list[memoryview]) -> IndexTables:
    # Written by `_pack`; the checksum was verified.
    ids, names, by_name = cast("tuple[list[str], list[str], dict[str, list[int]]]", json.loads(bytes(sections[0])))
    words = _lines(sections[1])
    return IndexTables(
        ids=tuple(ids),
        names=tuple(names),
        words=dict(zip(words, range(len(words)), strict=True)),
        forms=dict(zip(_lines(sections[2]), _ints("i", sections[3]), strict=True)),
        pair_starts=_ints("I", sections[4]),
        pair_seconds=_ints("I", sections[5]),
        name_words=tuple(tuple(keys) for keys in cast("list[list[int]]", json.loads(bytes(sections[6])))),
        name_rarities=_floats(sections[7]),
        postings=_read_postings(sections[8:13]),
        pairs=_read_postings(sections[13:18]),
        by_name={name: tuple(numbers) for name, numbers in by_name.items()},
    )


def _columns(postings: Postings) -> Iterator[array[int] | array[float]]:
    yield postings.starts
    yield postings.skills
    yield postings.impacts
    yield postings.fields
    yield postings.rarities


def _read_postings(sections: list[memoryview]) -> Postings:
    starts, skills, impacts, fields, rarities = sections
    return Postings(
        _ints("I", starts),
        _ints("I", skills),
        _floats(impacts),
        _ints("B", fields),
        _floats(rarities),
    )


def _lines(section: memoryview) -> list[str]:
    return bytes(section).decode().split("\n") if len(section) else []


def _ints(typecode: str, section: memoryview) -> array[int]:
    values: array[int] = array(typecode)
    values.frombytes(section)
    return values


def _floats(section: memoryview) -> array[float]:
    values = array("f")
    values.frombytes(section)
    return values


MAX_BODY_CHARACTERS = 100_000
"""Indexed length of a body; longer ones are data, not instructions."""
MIN_SKILLS = 64
"""Minimum number of skills for caching: a smaller index is built faster than it is loaded."""
MAX_IN_MEMORY = 8

_CODE_BLOCK = re.compile(r"^(```|~~~).*?^\1[ \t]*$", re.MULTILINE | re.DOTALL)


class DescribedSkill(Protocol):
    """Common fields of catalog skills and loaded skills."""

    @property
    def id(self) -> str: ...
    @property
    def name(self) -> str: ...
    @property
    def description(self) -> str: ...
    @property
    def tags(self) -> tuple[str, ...]: ...


class _Source(NamedTuple):
    """A skill before its body is read. Sources are sorted by name, then by ID."""

    name: str
    id: str
    digest: str
    """Digest of its `SKILL.md`."""
    number: int
    """Position among the indexed skills."""


class _FileChanged(Exception):
    """A file changed since the catalog was read, so the index must not be cached under the old fingerprint."""


def open_index(catalog: Catalog, *, cache_folder: Path | None = None) -> RoutingIndex:
    """Open the index of a catalog, cached in `cache_folder`."""
    ordered = sorted(
        _Source(content.name, content.id, content.digest, number) for number, content in enumerate(catalog.contents)
    )
    try:
        return _open(ordered, lambda number: _load_unchanged(catalog.skills[number]), cache_folder)
    except _FileChanged:
        return _build(ordered, lambda number: load_routable(catalog.skills[number]))


def open_index_of(skills: Iterable[SkillDefinition], *, cache_folder: Path | None = None) -> RoutingIndex:
    """Open the index of loaded skills. Equal contents have the same index as in `open_index`."""
    listed = list(skills)
    ordered = sorted(
        _Source(skill.name, skill.id, digest_content(skill.data), number) for number, skill in enumerate(listed)
    )
    return _open(ordered, lambda number: build_routable(listed[number], body=listed[number].body), cache_folder)


def load_routable(skill: CatalogSkill) -> RoutableSkill:
    """Load a skill with its body, which is empty if it can no longer be read."""
    data = _read(skill)
    return build_routable(skill, body="" if data is None else read_front_matter(data).body)


def build_routable(skill: DescribedSkill, *, body: str) -> RoutableSkill:
    """Build a skill for ranking, without code blocks and text beyond the limit."""
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
    # The content is the one that the catalog was read from: without problems, the front matter need not be parsed
    # again.
    return build_routable(skill, body=read_front_matter(data).body if skill.problems else read_body(data))


def _read(skill: CatalogSkill) -> bytes | None:
    data = read_skill_file(skill.file, limit=MAX_FILE_BYTES, within=skill.source.within or skill.source.folder)
    return None if isinstance(data, Problem) else data


def _open(ordered: Sequence[_Source], load: Callable[[int], RoutableSkill], cache_folder: Path | None) -> RoutingIndex:
    fingerprint = _get_fingerprint(ordered)
    memory = _get_memory(fingerprint)
    folder = cache_folder if len(ordered) >= MIN_SKILLS else None
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
    """A slot for an index, shared by the runs of a process, which mostly have the same catalog."""

    index: RoutingIndex | None = None


@lru_cache(maxsize=MAX_IN_MEMORY)
def _get_memory(_fingerprint: str) -> _Memory:
    return _Memory()


def _get_fingerprint(ordered: Sequence[_Source]) -> str:
    contents = json.dumps([(source.id, source.name, source.digest) for source in ordered])
    return hashlib.blake2b(contents.encode(), digest_size=16).hexdigest()
