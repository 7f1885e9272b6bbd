"""Images and PDF documents for a model: detect the type of bytes, and convert them to a format of every provider.

Sizes are read from the bytes themselves. Pillow, in the extra `images`, is needed only to scale an image down or to
convert another format.
"""

import importlib.util
import re
from collections.abc import Callable
from io import BytesIO
from typing import NamedTuple

from metier.errors import ToolFailed
from metier.extras import hint_extra
from metier.tools.base import Media

MAX_EDGE = 1568
"""Pixels of the longest side up to which no provider scales an image down."""
MAX_PICTURE_BYTES = 3_700_000
"""The lowest limit of a provider is 5 MB in base64, which adds a third."""
MAX_PDF_BYTES = 10_000_000
MAX_PIXELS = 100_000_000
"""Larger images are not decompressed: a small file can contain a huge one."""

PDF = "application/pdf"
_PNG, _JPEG, _GIF, _WEBP = "image/png", "image/jpeg", "image/gif", "image/webp"
_SIGNATURES: tuple[tuple[bytes, str], ...] = (
    (b"\x89PNG\r\n\x1a\n", _PNG),
    (b"\xff\xd8\xff", _JPEG),
    (b"GIF87a", _GIF),
    (b"GIF89a", _GIF),
    (b"%PDF-", PDF),
    (b"BM", "image/bmp"),
    (b"II*\x00", "image/tiff"),
    (b"MM\x00*", "image/tiff"),
)
_PAGE = re.compile(rb"/Type\s*/Page(?![a-zA-Z])")
"""A page of a PDF document. The count is an estimate, because pages may be in compressed objects."""
_NO_SIZE = frozenset({0xC4, 0xC8, 0xCC})
"""JPEG markers in the range of frame headers that are not frame headers."""


class Size(NamedTuple):
    width: int
    height: int


def get_media_type(data: bytes) -> str:
    """Return the media type by the first bytes; empty for anything but an image or a PDF document."""
    if data[:4] == b"RIFF" and data[8:12] == b"WEBP":
        return _WEBP
    return next((kind for mark, kind in _SIGNATURES if data.startswith(mark)), "")


def prepare_media(data: bytes, *, name: str) -> Media:
    """Convert an image or document for a model. Raises `ToolFailed` for other data, and if it is damaged or too large.

    A large image takes processor time: call it in a thread.
    """
    kind = get_media_type(data)
    if kind == PDF:
        if len(data) > MAX_PDF_BYTES:
            raise _refuse(name, f"has {len(data)} bytes, and at most {MAX_PDF_BYTES} are sent")
        return Media(data=data, media_type=PDF, name=name, pages=max(1, len(_PAGE.findall(data))))
    if not kind:
        raise _refuse(name, "is neither a picture (PNG, JPEG, GIF, WebP) nor a PDF document")
    size = _SIZES[kind](data) if kind in _SIZES else None
    if size is not None and size.width * size.height > MAX_PIXELS:
        raise _refuse(name, f"has {size.width} × {size.height} pixels, and at most {MAX_PIXELS} are unpacked")
    if kind in _SIZES and size is None:
        raise _refuse(name, "is damaged: its size cannot be read")
    if size is not None and max(size) <= MAX_EDGE and len(data) <= MAX_PICTURE_BYTES:
        return Media(data=data, media_type=kind, name=name, width=size.width, height=size.height)
    return _convert(data, kind, name=name)


def _convert(data: bytes, kind: str, *, name: str) -> Media:
    """Scale an image down, rotate it upright, and save it in a format that every provider accepts."""
    if importlib.util.find_spec("PIL") is None:
        raise ToolFailed(
            f"The image {name!r} is too large, or providers do not support its format ({kind}), and Pillow, which could"
            f" convert it, is not installed. {hint_extra('images')}",
            code="image_too_large",
        )
    from PIL import Image, ImageOps, UnidentifiedImageError

    try:
        with Image.open(BytesIO(data)) as opened:
            if opened.width * opened.height > MAX_PIXELS:
                raise _refuse(name, f"has {opened.width} × {opened.height} pixels")
            if opened.mode in ("RGB", "RGBA", "L", "CMYK"):
                opened.thumbnail((MAX_EDGE, MAX_EDGE))  # first, because the copies below of a huge image take gigabytes
            # Scaled and converted images lose their EXIF data, and with it the orientation.
            picture = ImageOps.exif_transpose(opened)
            has_holes = picture.mode in ("RGBA", "LA", "PA") or "transparency" in picture.info
            picture = picture.convert("RGBA" if has_holes else "RGB")
    # Pillow raises SyntaxError for a damaged PNG.
    except (UnidentifiedImageError, OSError, ValueError, SyntaxError, Image.DecompressionBombError) as error:
        raise _refuse(name, "is damaged: it cannot be decoded") from error
    edge = MAX_EDGE
    while True:
        picture.thumbnail((edge, edge))
        out = BytesIO()
        media_type = _PNG if has_holes or kind == _PNG else _JPEG
        if media_type == _PNG:
            picture.save(out, "PNG", optimize=True)
        if not has_holes and (media_type == _JPEG or len(out.getvalue()) > MAX_PICTURE_BYTES):
            media_type, out = _JPEG, BytesIO()
            # A photo saved as PNG can be many times larger.
            picture.save(out, "JPEG", quality=85)
        if len(out.getvalue()) <= MAX_PICTURE_BYTES:
            return Media(
                data=out.getvalue(), media_type=media_type, name=name, width=picture.width, height=picture.height
            )
        edge = edge * 3 // 4  # try smaller sizes, because the compressed size can't be predicted


def _refuse(name: str, why: str) -> ToolFailed:
    return ToolFailed(f"File {name!r} {why}", code="image_unusable")


def _size_png(data: bytes) -> Size | None:
    found = data[12:16] == b"IHDR" and len(data) >= 24
    return _positive(int.from_bytes(data[16:20]), int.from_bytes(data[20:24])) if found else None


def _size_gif(data: bytes) -> Size | None:
    return _positive(int.from_bytes(data[6:8], "little"), int.from_bytes(data[8:10], "little"))


def _size_webp(data: bytes) -> Size | None:
    match data[12:16]:
        case b"VP8X":
            # This variant and the next store the size minus one.
            return _positive(int.from_bytes(data[24:27], "little") + 1, int.from_bytes(data[27:30], "little") + 1)
        case b"VP8L":
            bits = int.from_bytes(data[21:25], "little")
            return _positive((bits & 0x3FFF) + 1, (bits >> 14 & 0x3FFF) + 1)
        case b"VP8 ":
            width, height = int.from_bytes(data[26:28], "little"), int.from_bytes(data[28:30], "little")
            # The two upper bits are a scaling hint for display.
            return _positive(width & 0x3FFF, height & 0x3FFF)
        case _:
            return None


def _size_jpeg(data: bytes) -> Size | None:
    """Read the size from the first frame header, skipping the segments before it by their lengths."""
    at = 2
    while at + 9 < len(data) and data[at] == 0xFF:
        marker = data[at + 1]
        if 0xC0 <= marker <= 0xCF and marker not in _NO_SIZE:
            return _read_size(data[at + 5 : at + 9])
        # A segment may be preceded by any number of 0xFF bytes as padding.
        at += 1 if marker == 0xFF else 2 + int.from_bytes(data[at + 2 : at + 4])
    return None


def _read_size(frame: bytes) -> Size | None:
    """Read height and width from a frame header, two bytes each."""
    return _positive(int.from_bytes(frame[2:4]), int.from_bytes(frame[:2]))


def _positive(width: int, height: int) -> Size | None:
    return Size(width, height) if width > 0 and height > 0 else None


_SIZES: dict[str, Callable[[bytes], Size | None]] = {
    _PNG: _size_png,
    _JPEG: _size_jpeg,
    _GIF: _size_gif,
    _WEBP: _size_webp,
}
