"""The text of a file: its encoding on disk, and the unsaved text in the user's editor.

Steps change the file on disk, never the editor's text.
"""

import codecs

from msgspec import Struct

from metier.errors import ToolFailed
from metier.tools.buffers import Buffers
from metier.tools.files.scope import Scope

_SAMPLE_BYTES = 8192
_BOMS = (
    (codecs.BOM_UTF8, "utf-8"),
    (codecs.BOM_UTF32_LE, "utf-32-le"),
    (codecs.BOM_UTF32_BE, "utf-32-be"),
    (codecs.BOM_UTF16_LE, "utf-16-le"),
    (codecs.BOM_UTF16_BE, "utf-16-be"),
)
"""UTF-32 is listed before UTF-16, because its little-endian mark starts with the mark of UTF-16."""
_ODD = frozenset(range(32)) - frozenset(b"\t\n\r\f\x1b\b") | {127}
"""Bytes that don't occur in text of a single-byte encoding."""
_MAX_ODD = 0.02
"""Share of such bytes up to which data counts as Latin-1 text."""
_MANY_ZEROS = 0.4
"""Share of zero bytes, in every second place, from which data counts as UTF-16."""
_SIGNATURES = (
    (b"\x89PNG", "a PNG image"),
    (b"\xff\xd8\xff", "a JPEG image"),
    (b"GIF8", "a GIF image"),
    (b"%PDF", "a PDF document"),
    (b"PK\x03\x04", "a ZIP archive or office document"),
    (b"\x1f\x8b", "gzip data"),
    (b"\x7fELF", "a program"),
    (b"SQLite format 3\0", "an SQLite database"),
)


class FileText(Struct, frozen=True):
    """`encode(text) == data` for the bytes that it was decoded from."""

    text: str
    encoding: str
    bom: bytes = b""

    @property
    def is_plain(self) -> bool:
        return self.encoding == "utf-8" and not self.bom

    @property
    def label(self) -> str:
        return f"{self.encoding} with a byte order mark" if self.bom else self.encoding

    def encode(self, text: str) -> bytes:
        """Encode a text like this file. Raises `ToolFailed` for a character that its encoding lacks."""
        try:
            return self.bom + text.encode(self.encoding)
        except UnicodeEncodeError as error:
            wrong = error.object[error.start]
            raise ToolFailed(
                f"The file is {self.encoding} and cannot hold {wrong!r}",
                hint="Write the whole file again",
                code="encoding",
            ) from error


def decode(data: bytes) -> FileText | None:
    """Decode the bytes of a text file; None for binary data."""
    for bom, encoding in _BOMS:
        if data.startswith(bom):
            return _try(data[len(bom) :], encoding, bom)
    sample = data[:_SAMPLE_BYTES]
    # No text in a single-byte encoding has zero bytes.
    if b"\0" in sample:
        return _try(data, wide) if (wide := _guess_wide(sample)) else None
    # Latin-1 decodes any bytes and gives them back unchanged, so it must come last.
    return _try(data, "utf-8") or (FileText(data.decode("latin-1"), "latin-1") if _looks_like_text(sample) else None)


def is_binary(data: bytes) -> bool:
    """Return True if the start of the data has a zero byte; quick enough for searching many files."""
    return b"\0" in data[:_SAMPLE_BYTES]


def describe_kind(data: bytes) -> str:
    return next((name for mark, name in _SIGNATURES if data.startswith(mark)), "binary data")


def _try(data: bytes, encoding: str, bom: bytes = b"") -> FileText | None:
    try:
        return FileText(data.decode(encoding), encoding, bom)
    except UnicodeDecodeError:
        return None


def _guess_wide(sample: bytes) -> str:
    """Guess UTF-16 without a byte order mark: in Western scripts every second byte is zero."""
    half = len(sample) // 2
    if sample[1::2].count(0) > half * _MANY_ZEROS and not sample[::2].count(0):
        return "utf-16-le"
    if sample[::2].count(0) > half * _MANY_ZEROS and not sample[1::2].count(0):
        return "utf-16-be"
    return ""


def _looks_like_text(sample: bytes) -> bool:
    return sum(byte in _ODD for byte in sample) <= len(sample) * _MAX_ODD


async def find_buffered(path: str, scope: Scope, buffers: Buffers) -> str | None:
    """Return the editor's text of a file; None if it isn't open. Raises `ToolFailed` for a path outside the scope."""
    spot = scope.locate(path)
    return await buffers.read(spot.root / spot.path)


def is_unsaved(buffered: str | None, disk: bytes | None) -> bool:
    """Return True if the editor's text differs from the disk. Line ends are ignored, because editors convert them."""
    if buffered is None:
        return False
    found = decode(disk) if disk is not None else None
    if disk is not None and found is None:
        return False  # the disk has binary data, and editors hold text
    return _plain(buffered) != _plain(found.text if found is not None else "")


def overlay(buffered: str | None, disk: bytes | None) -> bytes | None:
    """Return the editor's text if it is unsaved, else the bytes on disk."""
    return buffered.encode("utf-8", "replace") if buffered is not None and is_unsaved(buffered, disk) else disk


def check_saved(buffered: str | None, disk: bytes | None, *, path: str) -> None:
    """Raise `ToolFailed` for unsaved text: the user's save and the change would overwrite each other."""
    if is_unsaved(buffered, disk):
        raise ToolFailed(
            f"File {path!r} has changes in the editor that are not saved",
            hint="Ask the user to save it",
            code="conflict",
        )


def _plain(text: str) -> str:
    return text.replace("\r\n", "\n")
