"""Files that are written whole or not at all, among them cache files."""

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
"""More is not kept: it would fill the folder, and hardly be read faster than what it was made from."""
_LENGTH_BYTES = 8


def replace_file(path: Path, content: bytes, *, durable: bool = False, is_private: bool = True) -> None:
    """`durable` where losing it in a power cut would matter. Without `is_private` the file has the mode of any other.

    Raises `OSError`, and leaves nothing of the new content behind then.
    """
    fresh = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0)
    try:
        with os.fdopen(os.open(fresh, flags, 0o600 if is_private else 0o666), "wb") as stream:
            stream.write(content)
            if durable:
                stream.flush()
                os.fsync(stream.fileno())
        fresh.replace(path)
    except BaseException:
        fresh.unlink(missing_ok=True)
        raise
    if durable:
        sync_folder(path.parent)


def sync_folder(folder: Path) -> None:
    """Make the names in a folder survive a power cut. Windows has no such call, and needs none."""
    if os.name == "nt":
        return
    descriptor = os.open(folder, os.O_RDONLY | getattr(os, "O_DIRECTORY", 0))
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


_AT_FDCWD, _STATX_BTIME = -100, 0x800
_STATX_BYTES, _BTIME_OFFSET = 256, 0x50


def identify_file(path: Path) -> str:
    """Return an identity that a file keeps when it is renamed and that no copy of it has. Raises `OSError`.

    The inode number alone is not enough: ext4 gives that of a removed file to the next one. So it has the time of
    creation behind it, where the file system records one.
    """
    # By its path: to close a descriptor of a database would drop the locks that SQLite holds on it in this process.
    found = path.stat()
    born = _read_birth(path) if sys.platform == "linux" else str(getattr(found, "st_birthtime", ""))
    return f"{found.st_ino}:{born}"


def _read_birth(path: Path) -> str:
    """Python 3.12 has no `statx`, and its `stat` no time of creation on Linux."""
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


# A cache file: one header line (name, format, version, byte order, subject, checksum) and length-prefixed sections.
# If anything does not match, nothing is cached; losing it costs time only.
class CacheFiles(NamedTuple):
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
