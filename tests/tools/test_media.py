"""Sizes of pictures from their bytes, and conversion of unsupported ones."""

from contextlib import suppress
from io import BytesIO

import pytest

from metier.errors import ToolFailed
from metier.messages import MediaPart
from metier.providers.media_wire import count_media
from metier.tools.media import MAX_EDGE, MAX_PICTURE_BYTES, get_media_type, prepare_media

Image = pytest.importorskip("PIL.Image")


def build(kind: str, width: int, height: int, *, mode: str = "RGB", **options: bool) -> bytes:
    out = BytesIO()
    Image.effect_noise((width, height), 90).convert(mode).save(out, kind, **options)
    return out.getvalue()


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        ("PNG", {}),
        ("JPEG", {}),
        ("JPEG", {"progressive": True}),
        ("GIF", {}),
        ("WEBP", {}),
        ("WEBP", {"lossless": True}),
    ],
)
def test_the_size_of_a_picture_is_read_from_its_unchanged_bytes(kind: str, options: dict[str, bool]) -> None:
    data = build(kind, 123, 45, mode="RGB", **options)

    media = prepare_media(data, name="a")

    assert (media.width, media.height, media.data) == (123, 45, data)
    assert media.media_type == f"image/{kind.lower()}"
    for cut in range(1, min(len(data), 40)):
        if get_media_type(data[:cut]):
            with suppress(ToolFailed):  # nothing else may come of a picture that is torn
                prepare_media(data[:cut], name="a")


@pytest.mark.parametrize(
    ("kind", "mode", "becomes"),
    [
        ("PNG", "RGB", "image/png"),
        ("JPEG", "RGB", "image/jpeg"),
        ("BMP", "RGB", "image/jpeg"),
        ("TIFF", "RGBA", "image/png"),
    ],
)
def test_an_oversized_or_unsupported_picture_is_converted(kind: str, mode: str, becomes: str) -> None:
    media = prepare_media(build(kind, 2400, 600, mode=mode), name="a")

    assert (media.width, media.height) == (MAX_EDGE, MAX_EDGE // 4)
    assert media.media_type in (becomes, "image/jpeg")
    assert len(media.data) <= MAX_PICTURE_BYTES
    assert Image.open(BytesIO(media.data)).size == (media.width, media.height)


def test_a_picture_that_declares_a_huge_size_is_rejected() -> None:
    data = bytearray(build("PNG", 10, 10))
    data[16:24] = (60_000).to_bytes(4) * 2

    with pytest.raises(ToolFailed, match="60000 × 60000"):
        prepare_media(bytes(data), name="bomb.png")


def test_picture_tokens_match_the_rules_of_the_vendor() -> None:
    photo = MediaPart(media_type="image/png", digest="a", width=1092, height=1092)

    assert [count_media(name, photo) for name in ("anthropic", "openai", "gemini")] == [1590, 765, 1032]
    assert count_media("gemini", MediaPart(media_type="image/png", digest="a", width=300, height=300)) == 258
