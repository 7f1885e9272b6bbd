"""Vectors of texts on disk, by a hash of the text: what was asked for once is not asked for again.

One file for each server and model, and for each model in a folder: a header line (format, size of a vector, checksum),
then records of equal size. Numbers are kept as single bytes, which changes a cosine in the third place. Whatever is
wrong with the file, the answer is: no vectors.
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
"""The one that was not used for longest goes first."""
_KEY_BYTES = 16
_NORM = struct.Struct("<f")
_MOST = 127


class Vector:
    """A vector with its length, rounded to whole numbers from -127 to 127."""

    __slots__ = ("norm", "numbers")

    def __init__(self, numbers: array[int], norm: float) -> None:
        self.numbers = numbers
        self.norm = norm

    def __len__(self) -> int:
        return len(self.numbers)

    def cosine(self, other: "Vector") -> float:
        """To four places, so that the last bits of a sum do not decide an order. Both have the same length."""
        return round(math.sumprod(self.numbers, other.numbers) / (self.norm * other.norm), 4)


def build_vector(values: Sequence[float]) -> Vector | None:
    """Nothing for values that are no direction: none, all zero, or not finite."""
    most = max((abs(value) for value in values), default=0.0)
    if not most or not math.isfinite(most) or any(map(math.isnan, values)):
        return None
    numbers = array("b", [round(value / most * _MOST) for value in values])
    return Vector(numbers, math.sqrt(math.sumprod(numbers, numbers)))


def name_text(text: str) -> bytes:
    """The key of a text."""
    return hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=_KEY_BYTES).digest()


class VectorFile:
    """The kept vectors of one server and model, or of one model file."""

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
            os.utime(self._path)  # what is used stays longest
        step = _KEY_BYTES + _NORM.size + size
        return {
            body[at : at + _KEY_BYTES]: _unpack(body[at + _KEY_BYTES : at + step]) for at in range(0, len(body), step)
        }

    def save(self, vectors: Mapping[bytes, Vector], *, size: int) -> None:
        """Add to those that are there, which another process may have written; the newest stay where room is short.

        Vectors of another length are left out: they are of another model. A folder that cannot be written is no error.
        """
        merged = {**self.load(), **vectors}
        kept = [(key, vector) for key, vector in merged.items() if len(vector) == size]
        step = _KEY_BYTES + _NORM.size + size
        kept = kept[-min(MAX_VECTORS, MAX_FILE_BYTES // step) :]
        body = b"".join([key + _NORM.pack(vector.norm) + vector.numbers.tobytes() for key, vector in kept])
        with suppress(OSError):
            self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            replace_file(self._path, _header(size, body) + b"\n" + body)
            remove_old_files(self._path, "embeddings-*.vectors", most=MAX_FILES)


def _unpack(record: bytes) -> Vector:
    return Vector(array("b", record[_NORM.size :]), _NORM.unpack_from(record)[0])


def _header(size: int, body: bytes) -> bytes:
    return f"vectors {FORMAT} {size} {zlib.crc32(body):08x}".encode()
