"""Small handmade pictures and a document."""

import struct
import zlib


def build_png(width: int, height: int, *, grey: int = 120) -> bytes:
    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    rows = (b"\0" + bytes([grey]) * width) * height
    header = struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0)
    parts = chunk(b"IHDR", header), chunk(b"IDAT", zlib.compress(rows)), chunk(b"IEND", b"")
    return b"\x89PNG\r\n\x1a\n" + b"".join(parts)


PDF = b"%PDF-1.4\n1 0 obj\n<< /Type /Pages /Count 2 >>\n<< /Type /Page >>\n<< /Type/Page >>\n%%EOF\n"
