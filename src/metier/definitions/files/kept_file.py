"""A file of sections that can be made again: kept for the next process, replaced as a whole. Losing it costs time only.

It is one header line (what it is, format, version, byte order, of what, checksum) and length-prefixed sections.
Whatever does not match, the answer is: nothing is kept.
"""

import os
import sys
import zlib
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from metier.definitions.files.whole_file import replace_file
from metier.version import __version__

MAX_BYTES = 256 * 1024 * 1024
"""More is not kept: it would fill the folder, and hardly be read faster than what it was made from."""

_LENGTH_BYTES = 8


class KeptFiles(NamedTuple):
    """Files of one kind in a folder, each with a key that says what it was made of."""

    folder: Path
    kind: str
    format: int
    most: int
    """So many stay; the one that was not used for longest goes first."""

    def read(self, key: str) -> list[memoryview] | None:
        """The sections of exactly this key, or nothing."""
        path = self._path(key)
        try:
            content = path.read_bytes()
        except OSError:
            return None
        end = content.find(b"\n") + 1
        body = memoryview(content)[end:]
        if content[:end] != self._header(key, zlib.crc32(body)):
            return None
        with suppress(OSError):
            os.utime(path)  # what is used stays longest
        return list(_split(body))

    def write(self, key: str, sections: Sequence[bytes]) -> None:
        """Of two writers one wins. A folder that cannot be written is no error."""
        body = b"".join(part for section in sections for part in (len(section).to_bytes(_LENGTH_BYTES, "big"), section))
        if len(body) > MAX_BYTES:
            return
        path = self._path(key)
        with suppress(OSError):
            self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            replace_file(path, self._header(key, zlib.crc32(body)) + body)
            remove_old_files(path, f"{self.kind}-*.index", most=self.most)

    def _path(self, key: str) -> Path:
        return self.folder / f"{self.kind}-{key}.index"

    def _header(self, key: str, checksum: int) -> bytes:
        return f"{self.kind} {self.format} {__version__} {sys.byteorder} {key} {checksum:08x}\n".encode()


def remove_old_files(newest: Path, pattern: str, *, most: int) -> None:
    """Of the files beside it that fit the pattern, so many stay: those that were used last. Raises `OSError`."""
    others = [path for path in newest.parent.glob(pattern) if path != newest]
    for path in sorted(others, key=lambda path: path.stat().st_mtime, reverse=True)[most - 1 :]:
        path.unlink(missing_ok=True)


def _split(body: memoryview) -> Iterator[memoryview]:
    at = 0
    while at < len(body):
        start = at + _LENGTH_BYTES
        at = start + int.from_bytes(body[at:start], "big")
        yield body[start:at]
