"""Keep a built index on disk, so that the next process reads it instead of every skill. Losing it costs time only."""

import json
from array import array
from collections.abc import Iterator
from pathlib import Path
from typing import cast

from metier.definitions.files.whole_file import KeptFiles
from metier.routing.index import IndexTables, Postings
from metier.routing.ranking import RoutingIndex

FORMAT = 7
FILES_KEPT = 4
"""Indexes of further catalogs that stay; the oldest goes first."""


def load_index(folder: Path, fingerprint: str) -> RoutingIndex | None:
    """The index of exactly this catalog, or nothing."""
    sections = _files(folder).read(fingerprint)
    return None if sections is None else RoutingIndex(_unpack(sections))


def save_index(folder: Path, fingerprint: str, index: RoutingIndex) -> None:
    """A folder that cannot be written is no error."""
    _files(folder).write(fingerprint, _pack(index.tables))


def _files(folder: Path) -> KeptFiles:
    return KeptFiles(folder, "routing", FORMAT, FILES_KEPT)


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
    # Written by `_pack`; the checksum says that nothing else is here.
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
    yield array("I", postings.skills)
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
