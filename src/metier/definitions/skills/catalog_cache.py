"""The caches of the catalog: one for parsed `SKILL.md` files, and one for whole catalogs with many skills.

A file is identified by path, size, times and inode; a folder with the same times and inode has the same names. Link
targets can change elsewhere, so a catalog that depends on a link is not cached. Losing a cache only costs time.
"""

import hashlib
import json
import os
import time
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path

from msgspec import Struct, msgpack

from metier.definitions.files.walk import Walk
from metier.definitions.files.whole_file import CacheFiles
from metier.definitions.problems import Problem
from metier.definitions.skills.catalog import Catalog, CatalogSkill
from metier.definitions.skills.sources import SkillSource

FRESH_NS = 100_000_000
"""A file younger than this when it was read may change again without a new timestamp, so it is not cached."""
MIN_SKILLS = 64
"""Minimum number of skills for caching a catalog: a smaller one loads faster than its cache file."""
_FILES_FORMAT, _MAX_ROOTS = 6, 64
_CATALOG_FORMAT, _MAX_CATALOGS = 4, 4

type Stamp = tuple[int, int, int, int]
"""Size, modification time, change time, inode."""
type Place = tuple[str, Stamp]
"""A file or folder and its stamp."""


class ParsedFile(Struct, frozen=True):
    """A parsed `SKILL.md` with its problems."""

    skill: CatalogSkill | None
    """None if it cannot be used."""
    problems: tuple[Problem, ...]


class _StoredCatalog(Struct, frozen=True):
    skills: tuple[CatalogSkill, ...]
    shadowed: tuple[CatalogSkill, ...]
    problems: tuple[Problem, ...]


def stamp_of(stat: os.stat_result) -> Stamp:
    return (stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns, stat.st_ino)


def digest_content(data: bytes) -> str:
    """Return the digest of a `SKILL.md` for caches. Trust uses a separate digest of the whole folder."""
    return hashlib.blake2b(data, digest_size=16).hexdigest()


class CatalogCache:
    """Parsed files of one root folder. An unusable cache file counts as empty."""

    def __init__(self, folder: Path, root: Path) -> None:
        self._files = CacheFiles(folder, "skills", _FILES_FORMAT, _MAX_ROOTS)
        self._key = hashlib.sha256(os.fsencode(os.path.abspath(root))).hexdigest()[:24]  # noqa: PTH100
        sections = self._files.read(self._key)
        self._known = _decode(sections[0], dict[str, tuple[Stamp, ParsedFile]]) if sections else {}
        self._kept: dict[str, tuple[Stamp, ParsedFile]] = {}
        # Before the files are read: one that changes later must count as fresh.
        self._now = time.time_ns()
        self._is_changed = False

    def find(self, path: str, stamp: Stamp) -> ParsedFile | None:
        known = self._known.get(path)
        if known is None or known[0] != stamp:
            return None
        self._kept[path] = known
        return known[1]

    def keep(self, path: str, stamp: Stamp, parsed: ParsedFile) -> None:
        self._is_changed = True
        if max(stamp[1], stamp[2]) < self._now - FRESH_NS:
            self._kept[path] = (stamp, parsed)

    def save(self) -> None:
        """Replace the cache file if its entries changed. Write errors are ignored."""
        if self._is_changed or len(self._kept) != len(self._known):
            _write(self._files, self._key, self._kept)


@dataclass
class Seen:
    """The files and folders that a catalog was built from."""

    files: list[Place] = field(default_factory=list[Place])
    folders: list[Place] = field(default_factory=list[Place])
    is_complete: bool = True
    """True if no link was followed and every folder could be read."""
    started: int = field(default_factory=time.time_ns)

    def add_walk(self, walk: Walk) -> None:
        self.folders += [(path, stamp_of(status)) for path, status in walk.folders or ()]
        self.is_complete = self.is_complete and not walk.has_links and not walk.problems

    @property
    def can_be_compared(self) -> bool:
        """Return False if a file or folder changed so recently that another change might not alter its timestamp."""
        newest = max((max(stamp[1:3]) for _, stamp in (*self.files, *self.folders)), default=0)
        return self.is_complete and newest < self.started - FRESH_NS


class CachedCatalog:
    """The cached catalog of some sources in a cache folder."""

    def __init__(self, folder: Path, sources: Sequence[SkillSource]) -> None:
        self._files = CacheFiles(folder, "catalog", _CATALOG_FORMAT, _MAX_CATALOGS)
        self._key = _get_key(sources)

    def load(self) -> Catalog | None:
        """Return the catalog if none of its files and folders has changed."""
        sections = self._files.read(self._key)
        if sections is None or not _are_unchanged(_decode(sections[0], list[Place])):
            return None
        stored = _decode(sections[1], _StoredCatalog)
        return Catalog(skills=stored.skills, shadowed=stored.shadowed, problems=stored.problems)

    def save(self, catalog: Catalog, seen: Seen) -> None:
        """Store the catalog, unless it is small or changes could go unnoticed."""
        if len(catalog.skills) + len(catalog.shadowed) >= MIN_SKILLS and seen.can_be_compared:
            stored = _StoredCatalog(catalog.skills, catalog.shadowed, catalog.problems)
            _write(self._files, self._key, [*seen.folders, *seen.files], stored)


def _get_key(sources: Sequence[SkillSource]) -> str:
    """Return a digest of the searched folders, including missing ones, and their real paths."""
    places = [
        (
            source.kind,
            os.path.abspath(source.folder),  # noqa: PTH100 - text, as a walk names it
            os.path.realpath(source.folder) if os.path.lexists(source.folder) else None,
            os.path.realpath(source.within) if source.within else None,
        )
        for source in sources
    ]
    return hashlib.blake2b(json.dumps(places).encode(), digest_size=16).hexdigest()


def _are_unchanged(places: Iterable[Place]) -> bool:
    try:
        return all(stamp_of(os.stat(path)) == stamp for path, stamp in places)  # noqa: PTH116 - thousands of paths
    except OSError:
        return False


def _write(files: CacheFiles, key: str, *values: object) -> None:
    # A path that is no valid Unicode cannot be encoded. Such a catalog is read again each time.
    with suppress(UnicodeEncodeError):
        files.write(key, [msgpack.encode(value, enc_hook=str) for value in values])  # only paths need the hook


def _decode[T](section: memoryview, kind: type[T]) -> T:
    # Written by `_write`; the checksum rules out other content.
    return msgpack.decode(section, type=kind, dec_hook=_decode_path)


@lru_cache(maxsize=64)
def _decode_path(_: type, text: str) -> Path:
    # Cached, because thousands of skills have the same source.
    return Path(text)
