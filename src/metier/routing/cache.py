"""Keep a built index on disk, so that the next process reads it instead of every skill. Losing it costs time only.

A file is one header line (format, version, byte order, fingerprint of the catalog, checksum) and length-prefixed
sections. Whatever does not match, the answer is: no index.
"""

import json
import os
import sys
import zlib
from array import array
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import cast

from metier.definitions.files.whole_file import replace_file
from metier.routing.index import IndexTables, Postings, build_name_table
from metier.routing.router import RoutingIndex
from metier.version import __version__

FORMAT = 3
FILES_KEPT = 4
"""Indexes of further catalogs that stay; the oldest goes first."""

MAX_INDEX_BYTES = 256 * 1024 * 1024
"""A larger index is not kept: it would fill the folder, and hardly be read faster than the skills."""

_LENGTH_BYTES = 8


def load_index(folder: Path, fingerprint: str) -> RoutingIndex | None:
    """The index of exactly this catalog, or nothing."""
    path = _path(folder, fingerprint)
    try:
        content = path.read_bytes()
    except OSError:
        return None
    end = content.find(b"\n") + 1
    body = memoryview(content)[end:]
    if content[:end] != _header(fingerprint, zlib.crc32(body)):
        return None
    with suppress(OSError):
        os.utime(path)  # what is used stays longest
    return RoutingIndex(_unpack(list(_split(body))))


def save_index(folder: Path, fingerprint: str, index: RoutingIndex) -> None:
    """Replace the file as a whole, so that of two writers one wins. A folder that cannot be written is no error."""
    sections = _pack(index.tables)
    body = b"".join(part for section in sections for part in (len(section).to_bytes(_LENGTH_BYTES, "big"), section))
    if len(body) > MAX_INDEX_BYTES:
        return
    path = _path(folder, fingerprint)
    with suppress(OSError):
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        replace_file(path, _header(fingerprint, zlib.crc32(body)) + body)
        _remove_old(folder, path)


def _path(folder: Path, fingerprint: str) -> Path:
    return folder / f"routing-{fingerprint}.index"


def _header(fingerprint: str, checksum: int) -> bytes:
    return f"routing {FORMAT} {__version__} {sys.byteorder} {fingerprint} {checksum:08x}\n".encode()


def _pack(tables: IndexTables) -> list[bytes]:
    return [
        json.dumps([tables.ids, tables.names]).encode(),
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
    ids, names = cast("tuple[list[str], list[str]]", json.loads(bytes(sections[0])))
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
        by_name=build_name_table(names),
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


def _split(body: memoryview) -> Iterator[memoryview]:
    at = 0
    while at < len(body):
        start = at + _LENGTH_BYTES
        at = start + int.from_bytes(body[at:start], "big")
        yield body[start:at]


def _remove_old(folder: Path, newest: Path) -> None:
    others = [path for path in folder.glob("routing-*.index") if path != newest]
    for path in sorted(others, key=lambda path: path.stat().st_mtime, reverse=True)[FILES_KEPT - 1 :]:
        path.unlink(missing_ok=True)
