"""A cache of embedding vectors on disk, by the hash of the text.

Each model has a file with a header line (format, vector size, checksum) and records of equal size. Numbers are rounded
to single bytes, which changes only the third decimal of a cosine. A damaged file counts as empty. Unlike `CacheFiles`,
these files outlive a release, because vectors of a server may cost money.
"""

import hashlib
import math
import os
import struct
import zlib
from array import array
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from metier.definitions.files.whole_file import remove_old_files, replace_file

FORMAT = 1
MAX_VECTORS = 50_000
MAX_FILE_BYTES = 128 * 1024 * 1024
MAX_FILES = 4
"""Maximum number of files; the least recently used is deleted first."""
_KEY_BYTES = 16
_NORM = struct.Struct("<f")
_MAX_NUMBER = 127


class Vector:
    """A vector, rounded to integers from -127 to 127, with its norm."""

    __slots__ = ("norm", "numbers")

    def __init__(self, numbers: array[int], norm: float) -> None:
        self.numbers = numbers
        self.norm = norm

    def __len__(self) -> int:
        return len(self.numbers)

    def cosine(self, other: "Vector") -> float:
        """Return the cosine of two vectors of equal length, rounded so that float errors don't decide an order."""
        return round(math.sumprod(self.numbers, other.numbers) / (self.norm * other.norm), 4)


def build_vector(values: Sequence[float]) -> Vector | None:
    """Build a vector, or return None for values without a direction: empty, all zero, or not finite."""
    largest = max((abs(value) for value in values), default=0.0)
    if not largest or not math.isfinite(largest) or any(map(math.isnan, values)):
        return None
    numbers = array("b", [round(value / largest * _MAX_NUMBER) for value in values])
    return Vector(numbers, math.sqrt(math.sumprod(numbers, numbers)))


def name_text(text: str) -> bytes:
    """Return the key of a text."""
    return hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=_KEY_BYTES).digest()


class VectorFile:
    """The cached vectors of one model."""

    def __init__(self, folder: Path, identity: str) -> None:
        self._path = folder / f"embeddings-{hashlib.blake2b(identity.encode(), digest_size=12).hexdigest()}.vectors"

    def load(self) -> dict[bytes, Vector]:
        try:
            header, _, body = self._path.read_bytes().partition(b"\n")
            size = int(header.split()[2])
        except (OSError, ValueError, IndexError):
            return {}
        if header != _header(size, body) or size < 1:
            return {}
        with suppress(OSError):
            os.utime(self._path)  # the least recently used file is deleted first
        step = _KEY_BYTES + _NORM.size + size
        return {
            body[at : at + _KEY_BYTES]: _unpack(body[at + _KEY_BYTES : at + step]) for at in range(0, len(body), step)
        }

    def save(self, vectors: Mapping[bytes, Vector], *, size: int) -> None:
        """Add vectors to those in the file, dropping the oldest if there are too many.

        Vectors of another length belong to another model and are ignored, and so is a folder that cannot be written.
        """
        # Without a lock: vectors that a concurrent writer loses are requested again.
        merged = {**self.load(), **vectors}
        saved = [(key, vector) for key, vector in merged.items() if len(vector) == size]
        step = _KEY_BYTES + _NORM.size + size
        saved = saved[-min(MAX_VECTORS, MAX_FILE_BYTES // step) :]
        body = b"".join([key + _NORM.pack(vector.norm) + vector.numbers.tobytes() for key, vector in saved])
        with suppress(OSError):
            self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            replace_file(self._path, _header(size, body) + b"\n" + body)
            remove_old_files(self._path, "embeddings-*.vectors", most=MAX_FILES)


def _unpack(record: bytes) -> Vector:
    return Vector(array("b", record[_NORM.size :]), _NORM.unpack_from(record)[0])


def _header(size: int, body: bytes) -> bytes:
    return f"vectors {FORMAT} {size} {zlib.crc32(body):08x}".encode()
