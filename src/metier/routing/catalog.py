"""The routing index of a catalog for commands and runs, cached on disk by the contents of the skill files.

Bodies are only read if there is no cached index for exactly these contents.
"""

import hashlib
import json
import re
from array import array
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import NamedTuple, Protocol, cast

from msgspec import msgpack

from metier.definitions.files.whole_file import CacheFiles
from metier.definitions.problems import Problem
from metier.definitions.skills.catalog import Catalog, CatalogSkill
from metier.definitions.skills.catalog_cache import digest_content
from metier.definitions.skills.skill import SkillDefinition
from metier.definitions.skills.skill_file import MAX_FILE_BYTES, read_skill_file
from metier.definitions.text.front_matter import read_body, read_front_matter
from metier.routing.index import IndexTables, build_ordered_tables
from metier.routing.ranking import RoutingIndex
from metier.routing.skill import RoutableSkill

# Cached files also name the version of Metier. This number separates states of the code within one version.
FORMAT = 9
MAX_FILES = 4
"""Maximum number of cached indexes; the oldest is deleted first."""


def load_index(folder: Path, fingerprint: str) -> RoutingIndex | None:
    """Load the cached index of exactly this catalog, or return None."""
    sections = _files(folder).read(fingerprint)
    if sections is None:
        return None
    # Written by `save_index`; the checksum was verified.
    return RoutingIndex(msgpack.decode(sections[0], type=IndexTables, ext_hook=_decode_array))


def save_index(folder: Path, fingerprint: str, index: RoutingIndex) -> None:
    """Cache an index. A folder that cannot be written is ignored."""
    _files(folder).write(fingerprint, [msgpack.encode(index.tables, enc_hook=_encode_array)])


def _files(folder: Path) -> CacheFiles:
    return CacheFiles(folder, "routing", FORMAT, MAX_FILES)


def _encode_array(value: object) -> msgpack.Ext:
    # As bytes, because decoding millions of numbers one by one would take longer than all the rest of the command.
    column = cast("array[float]", value)
    return msgpack.Ext(ord(column.typecode), column.tobytes())


def _decode_array(code: int, content: memoryview) -> array[float]:
    values = array("f") if chr(code) == "f" else cast("array[float]", array(chr(code)))
    values.frombytes(content)
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
    ordered = sorted(_Source(skill.name, skill.id, skill.digest, number) for number, skill in enumerate(catalog.skills))
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


_recent: dict[str, RoutingIndex] = {}
"""Indexes by fingerprint, shared by the runs of a process, which mostly have the same catalog."""


def _open(ordered: Sequence[_Source], load: Callable[[int], RoutableSkill], cache_folder: Path | None) -> RoutingIndex:
    contents = json.dumps([(source.id, source.name, source.digest) for source in ordered])
    fingerprint = hashlib.blake2b(contents.encode(), digest_size=16).hexdigest()
    if (recent := _recent.get(fingerprint)) is not None:
        return recent
    folder = cache_folder if len(ordered) >= MIN_SKILLS else None
    index = load_index(folder, fingerprint) if folder is not None else None
    if index is None:
        index = _build(ordered, load)
        if folder is not None:
            save_index(folder, fingerprint, index)
    # All at once, without an order of use: a dropped index is read from its cache file again.
    if len(_recent) >= MAX_IN_MEMORY:
        _recent.clear()
    _recent[fingerprint] = index
    return index


def _build(ordered: Sequence[_Source], load: Callable[[int], RoutableSkill]) -> RoutingIndex:
    return RoutingIndex(build_ordered_tables(load(source.number) for source in ordered))
