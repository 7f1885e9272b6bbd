"""Images and documents in the wire formats of vendors, and their token counts. Pure."""

import base64
from collections.abc import Mapping
from math import ceil

from metier.messages import MediaPart

_PDF = "application/pdf"
_PIXELS_PER_TOKEN = 750
"""Anthropic's rule."""
_TILE, _TILE_TOKENS, _SMALL = 768, 258, 384
"""Gemini's rule: 258 tokens for each tile of 768 × 768 pixels, or for an image of at most 384 pixels."""
_TOKENS_PER_PAGE = 2_000
"""Text and image of a page. Vendors differ; this overestimates a page of ordinary text."""


def encode_media(part: MediaPart, media: Mapping[str, bytes]) -> str:
    """Encode the bytes in base64; empty if they are unavailable."""
    return base64.b64encode(media[part.digest]).decode("ascii") if part.digest in media else ""


def build_data_url(part: MediaPart, media: Mapping[str, bytes]) -> str:
    return f"data:{part.media_type};base64,{encode_media(part, media)}"


def is_picture(part: MediaPart) -> bool:
    return part.media_type != _PDF


def describe_absent(part: MediaPart) -> str:
    """Return a placeholder for a part whose bytes are unavailable."""
    return f"[{part.media_type} {part.name!r} is not available]"


def count_media(provider: str, part: MediaPart) -> int:
    """Count tokens the way the vendor does."""
    if part.pages:
        return part.pages * (_TILE_TOKENS if provider == "gemini" else _TOKENS_PER_PAGE)
    match provider:
        case "openai":
            return _count_tiles(part.width, part.height)
        case "gemini":
            is_small = max(part.width, part.height) <= _SMALL
            return _TILE_TOKENS * (1 if is_small else ceil(part.width / _TILE) * ceil(part.height / _TILE))
        case _:
            return ceil(part.width * part.height / _PIXELS_PER_TOKEN)


def _count_tiles(width: int, height: int) -> int:
    # OpenAI's rule: scale the shorter side down to 768, then 85 tokens plus 170 for each 512 × 512 tile.
    shorter = min(width, height)
    scale = min(1.0, 768 / shorter) if shorter else 1.0
    return 85 + 170 * ceil(width * scale / 512) * ceil(height * scale / 512)
