"""The caches of the catalog: one for parsed `SKILL.md` files, and one for whole catalogs with many skills.

A file is identified by path, size, times and inode; a folder with the same times and inode has the same names. Link
targets can change elsewhere, so a catalog that depends on a link is not cached. Losing a cache only costs time.
"""

import hashlib
import json
import os
import time
from array import array
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from itertools import accumulate, batched
from pathlib import Path
from typing import Any, cast, overload, override

from metier.definitions.files.walk import Walk
from metier.definitions.files.whole_file import CacheFiles, replace_file
from metier.definitions.problems import Problem, Severity
from metier.definitions.skills.catalog import Catalog, CatalogSkill, LateSequence, LateSkills, SkillContent
from metier.definitions.skills.sources import SkillSource
from metier.version import __version__

_FILES_FORMAT = 5
FRESH_NS = 100_000_000
"""A file younger than this when it was read may change again without a new timestamp, so it is not cached."""

type Stamp = tuple[int, int, int, int]
"""Size, modification time, change time, inode."""
type Payload = list[object]
"""Cached value of a file; see `catalog_loader`."""


def stamp_of(stat: os.stat_result) -> Stamp:
    return (stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns, stat.st_ino)


def digest_content(data: bytes) -> str:
    """Return the digest of a `SKILL.md` for caches. Trust uses a separate digest of the whole folder."""
    return hashlib.blake2b(data, digest_size=16).hexdigest()


class CatalogCache:
    """Parsed files of one root folder. An unusable cache file counts as empty."""

    def __init__(self, folder: Path, root: Path) -> None:
        key = hashlib.sha256(os.fsencode(os.path.abspath(root))).hexdigest()[:24]  # noqa: PTH100
        self._path = folder / f"skills-{key}.json"
        self._known = self._load()
        self._kept: dict[str, list[object]] = {}
        self._now = time.time_ns()
        self._is_changed = False

    def find(self, path: str, stamp: Stamp) -> Payload | None:
        known = self._known.get(path)
        if known is None or known[0] != list(stamp):
            return None
        self._kept[path] = known
        return cast("Payload", known[1])  # written by `keep`, guarded by the checksum

    def keep(self, path: str, stamp: Stamp, payload: Payload) -> None:
        self._is_changed = True
        if max(stamp[1], stamp[2]) < self._now - FRESH_NS:
            self._kept[path] = [list(stamp), payload]

    def save(self) -> None:
        """Replace the cache file if its entries changed. Write errors are ignored."""
        if not self._is_changed and len(self._kept) == len(self._known):
            return
        body = json.dumps(self._kept, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "surrogatepass")
        with suppress(OSError):
            self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            replace_file(self._path, _header(body) + body)

    def _load(self) -> dict[str, list[object]]:
        try:
            header, _, body = self._path.read_bytes().partition(b"\n")
        except OSError:
            return {}
        if header + b"\n" != _header(body):
            return {}
        return json.loads(body.decode("utf-8", "surrogatepass"))


def _header(body: bytes) -> bytes:
    """Return format, version and checksum, so that a torn, foreign or outdated file does not match."""
    return f"{_FILES_FORMAT} {__version__} {hashlib.blake2b(body, digest_size=16).hexdigest()}\n".encode()


_CATALOG_FORMAT = 3
MAX_FILES = 4
MIN_SKILLS = 64
"""Minimum number of skills for caching: a smaller catalog loads faster than its cache file."""

_STAMP = 4
_PLACES, _STAMPS, _COUNTS, _SOURCES, _IDS, _NAMES, _DIGESTS, _ENDS, _RECORDS, _PROBLEMS = range(10)
"""The sections of a cache file: paths, their stamps, the number of skills, a column for each frequently read field, the
ends of the records, a record for each skill with the remaining fields, and the problems of the catalog.
"""


@dataclass
class Seen:
    """The files and folders that a catalog was built from."""

    files: list[tuple[str, Stamp]] = field(default_factory=list[tuple[str, Stamp]])
    folders: list[tuple[str, Stamp]] = field(default_factory=list[tuple[str, Stamp]])
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
        self._files = CacheFiles(folder, "catalog", _CATALOG_FORMAT, MAX_FILES)
        self._sources = sources
        self._key = _get_key(sources)

    def load(self) -> Catalog | None:
        """Return the catalog if none of its files and folders has changed."""
        sections = self._files.read(self._key)
        if sections is None or not _are_unchanged(_read_json(sections[_PLACES]), sections[_STAMPS]):
            return None
        rows = _Rows(sections, self._sources)
        taken, all_rows = _read_json(sections[_COUNTS])
        return Catalog(
            skills=_CachedSkills(rows, range(taken)),
            shadowed=_CachedSkills(rows, range(taken, all_rows)),
            problems=_CachedProblems(sections[_PROBLEMS]),
        )

    def save(self, catalog: Catalog, seen: Seen) -> None:
        """Store the catalog, unless it is small or changes could go unnoticed."""
        skills = [*catalog.skills, *catalog.shadowed]
        if len(skills) < MIN_SKILLS or not seen.can_be_compared:
            return
        numbers = {source: number for number, source in enumerate(self._sources)}
        places = [*seen.folders, *seen.files]
        try:
            stamps = array("q", [number for _, stamp in places for number in stamp])
        except OverflowError:  # inode numbers beyond 63 bits
            return
        records = [_write_json(_pack(skill)) for skill in skills]
        self._files.write(
            self._key,
            [
                _write_json([path for path, _ in places]),
                stamps.tobytes(),
                _write_json([len(catalog.skills), len(skills)]),
                array("I", [numbers[skill.source] for skill in skills]).tobytes(),
                _write_json([skill.id for skill in skills]),
                _write_json([skill.name for skill in skills]),
                _write_json([skill.digest for skill in skills]),
                array("Q", accumulate(map(len, records))).tobytes(),
                b"".join(records),
                _write_json(_pack_problems(catalog.problems)),
            ],
        )


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
    return hashlib.blake2b(_write_json(places), digest_size=16).hexdigest()


def _are_unchanged(paths: Iterable[str], stamps: memoryview) -> bool:
    kept = _read_array("q", stamps)
    look = os.stat
    try:
        for path, known in zip(paths, batched(kept, _STAMP), strict=True):
            status = look(path)
            if (status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_ino) != known:
                return False
    except OSError:
        return False
    return True


class _Rows:
    """Columns and records of a cached catalog, read on demand."""

    def __init__(self, sections: list[memoryview], sources: Sequence[SkillSource]) -> None:
        self._sections = sections
        self.sources = sources

    @cached_property
    def source_numbers(self) -> array[int]:
        return _read_array("I", self._sections[_SOURCES])

    @cached_property
    def ids(self) -> list[str]:
        return _read_json(self._sections[_IDS])

    @cached_property
    def names(self) -> list[str]:
        return _read_json(self._sections[_NAMES])

    @cached_property
    def digests(self) -> list[str]:
        return _read_json(self._sections[_DIGESTS])

    @cached_property
    def _ends(self) -> array[int]:
        return _read_array("Q", self._sections[_ENDS])

    def build(self, number: int) -> CatalogSkill:
        record = self._sections[_RECORDS][self._ends[number - 1] if number else 0 : self._ends[number]]
        # The format is that of `_pack`; the checksum rules out other content.
        path, description, version, license_, tags, tools, problems = _read_json(record)
        return CatalogSkill(
            id=self.ids[number],
            name=self.names[number],
            description=description,
            path=path,
            source=self.sources[self.source_numbers[number]],
            version=version,
            license=license_,
            tags=tuple(tags),
            allowed_tools=tuple(tools),
            digest=self.digests[number],
            problems=tuple(_unpack_problems(problems)),
        )


class _CachedSkills(LateSkills):
    def __init__(self, rows: _Rows, numbers: Sequence[int]) -> None:
        self._rows = rows
        self._numbers = numbers

    @override
    def __len__(self) -> int:
        return len(self._numbers)

    @overload
    def __getitem__(self, index: int) -> CatalogSkill: ...
    @overload
    def __getitem__(self, index: slice) -> "_CachedSkills": ...
    @override
    def __getitem__(self, index: int | slice) -> "CatalogSkill | _CachedSkills":
        if isinstance(index, slice):
            return _CachedSkills(self._rows, self._numbers[index])
        return self._rows.build(self._numbers[index])

    @property
    @override
    def contents(self) -> Sequence[SkillContent]:
        ids, names, digests = self._rows.ids, self._rows.names, self._rows.digests
        return [SkillContent(ids[number], names[number], digests[number]) for number in self._numbers]

    @property
    @override
    def sources(self) -> frozenset[SkillSource]:
        used = set(map(self._rows.source_numbers.__getitem__, self._numbers))
        return frozenset(map(self._rows.sources.__getitem__, used))

    @override
    def keep(self, whole: frozenset[SkillSource], wanted: Callable[[CatalogSkill], bool]) -> "_CachedSkills":
        sources, build = self._rows.source_numbers, self._rows.build
        taken = {number for number, source in enumerate(self._rows.sources) if source in whole}
        kept = [number for number in self._numbers if sources[number] in taken or wanted(build(number))]
        return _CachedSkills(self._rows, kept)


class _CachedProblems(LateSequence[Problem]):
    def __init__(self, section: memoryview) -> None:
        self._section = section

    @cached_property
    def _problems(self) -> list[Problem]:
        return list(_unpack_problems(_read_json(self._section)))

    @override
    def __len__(self) -> int:
        return len(self._problems)

    @overload
    def __getitem__(self, index: int) -> Problem: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[Problem]: ...
    @override
    def __getitem__(self, index: int | slice) -> Problem | Sequence[Problem]:
        return self._problems[index]


def _pack(skill: CatalogSkill) -> list[object]:
    return [
        skill.path,
        skill.description,
        skill.version,
        skill.license,
        skill.tags,
        skill.allowed_tools,
        _pack_problems(skill.problems),
    ]


def _pack_problems(problems: Iterable[Problem]) -> list[object]:
    return [[each.severity, each.code, each.message, each.file, each.line, each.hint] for each in problems]


def _unpack_problems(packed: object) -> Iterable[Problem]:
    # The format is that of `_pack_problems`.
    for severity, code, message, file, line, hint in cast(
        "list[tuple[Severity, str, str, str, int | None, str]]", packed
    ):
        yield Problem(severity=severity, code=code, message=message, file=file, line=line, hint=hint)


def _read_array(typecode: str, section: memoryview) -> array[int]:
    values: array[int] = array(typecode)
    values.frombytes(section)
    return values


def _write_json(value: object) -> bytes:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "surrogatepass")


def _read_json(section: memoryview) -> Any:  # noqa: ANN401 - what `_write_json` was given
    return json.loads(bytes(section).decode("utf-8", "surrogatepass"))
