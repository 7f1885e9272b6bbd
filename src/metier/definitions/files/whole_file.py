"""Atomic replacement of files, and cache files."""

import os
import secrets
import struct
import sys
import zlib
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from metier.version import __version__

MAX_BYTES = 256 * 1024 * 1024
"""Larger content is not cached: reading it back would hardly be faster than recomputing it."""
_LENGTH_BYTES = 8


def replace_file(path: Path, content: bytes, *, durable: bool = False, is_private: bool = True) -> None:
    """Write a file atomically. With `durable`, it survives a power cut. Raises `OSError`.

    Without `is_private`, the file has the default mode.
    """
    # In the same folder, because a rename is atomic only within a file system; random, because two processes may write.
    fresh = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0)
    try:
        with os.fdopen(os.open(fresh, flags, 0o600 if is_private else 0o666), "wb") as stream:
            stream.write(content)
            if durable:
                # Before the rename: otherwise a power cut could leave the new name with empty content.
                stream.flush()
                os.fsync(stream.fileno())
        fresh.replace(path)
    except BaseException:
        fresh.unlink(missing_ok=True)
        raise
    if durable:
        sync_folder(path.parent)


def sync_folder(folder: Path) -> None:
    """Make renames in a folder survive a power cut. Windows has no such call and needs none."""
    if os.name == "nt":
        return
    descriptor = os.open(folder, os.O_RDONLY | getattr(os, "O_DIRECTORY", 0))
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


_AT_FDCWD, _STATX_BTIME = -100, 0x800
# The size of `struct statx`, and the offset of `stx_btime` in it.
_STATX_BYTES, _BTIME_OFFSET = 256, 0x50


def identify_file(path: Path) -> str:
    """Return an identity that survives a rename and differs for every copy. Raises `OSError`.

    The inode number alone is not enough, because ext4 reuses the number of a removed file. So the creation time is
    appended if the file system records it.
    """
    # By path: closing a descriptor of a database would drop the POSIX locks that SQLite holds in this process.
    found = path.stat()
    born = _read_birth(path) if sys.platform == "linux" else str(getattr(found, "st_birthtime", ""))
    return f"{found.st_ino}:{born}"


def _read_birth(path: Path) -> str:
    """Return the creation time, which Python 3.12 does not provide on Linux."""
    import ctypes  # noqa: PLC0415  a millisecond that most commands don't need

    buffer = ctypes.create_string_buffer(_STATX_BYTES)
    try:
        failed = ctypes.CDLL(None).statx(_AT_FDCWD, os.fsencode(path), 0, _STATX_BTIME, buffer)
    except AttributeError:  # an old C library
        return ""
    (mask,) = struct.unpack_from("I", buffer)
    if failed or not mask & _STATX_BTIME:
        return ""
    seconds, nanoseconds = struct.unpack_from("qI", buffer, _BTIME_OFFSET)
    return f"{seconds}.{nanoseconds:09}"


# A cache file has a header line (kind, format, version, byte order, key, checksum) and length-prefixed sections. If the
# header doesn't match, the file counts as missing, which only costs time.
class CacheFiles(NamedTuple):
    """Cache files of one kind in a folder, each with a key that identifies its sources."""

    folder: Path
    kind: str
    format: int
    most: int
    """Maximum number of files; the least recently used ones are removed."""

    def read(self, key: str) -> list[memoryview] | None:
        """Return the sections stored under exactly this key."""
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
            os.utime(path)  # the least recently used file is deleted first
        return list(_split(body))

    def write(self, key: str, sections: Sequence[bytes]) -> None:
        """Store sections. Errors are ignored. With two concurrent writers, the last one wins."""
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
    """Remove all but the `most` recently used files that match the pattern. Raises `OSError`."""
    others = [path for path in newest.parent.glob(pattern) if path != newest]
    for path in sorted(others, key=lambda path: path.stat().st_mtime, reverse=True)[most - 1 :]:
        path.unlink(missing_ok=True)


def _split(body: memoryview) -> Iterator[memoryview]:
    at = 0
    while at < len(body):
        start = at + _LENGTH_BYTES
        at = start + int.from_bytes(body[at:start], "big")
        yield body[start:at]
