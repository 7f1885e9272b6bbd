"""Read shows text in any encoding with line numbers and reports omissions."""

from pathlib import Path

import pytest
from file_tools import Bench

from metier.tools.files.read import MAX_CHARACTERS, Read

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


async def test_lines_are_numbered_and_a_range_says_how_to_continue(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    (tmp_path / "a.txt").write_text("one\ntwo\nthree\nfour\n")

    assert (
        await bench.output(Read(bench.scope), path="a.txt") == "     1\tone\n     2\ttwo\n     3\tthree\n     4\tfour"
    )
    assert await bench.output(Read(bench.scope), path="a.txt", offset=2, limit=2) == (
        "     2\ttwo\n     3\tthree\n[lines 2 to 3 of 4; continue with offset 4]"
    )
    assert "so none from 9" in await bench.error(Read(bench.scope), path="a.txt", offset=9)


@pytest.mark.parametrize(
    ("data", "label"),
    [
        ("grün\n".encode(), ""),
        (b"\xef\xbb\xbfgr\xc3\xbcn\n", "utf-8 with a byte order mark"),
        ("\ufeffgrün\n".encode("utf-16-le"), "utf-16-le with a byte order mark"),
        ("\ufeffgrün\n".encode("utf-16-be"), "utf-16-be with a byte order mark"),
        ("grün\n".encode("utf-16-le"), "utf-16-le"),
        ("\ufeffgrün\n".encode("utf-32-le"), "utf-32-le with a byte order mark"),
        ("grün\n".encode("latin-1"), "latin-1"),
    ],
)
async def test_encodings_are_detected_and_named(tmp_path: Path, data: bytes, label: str) -> None:
    (tmp_path / "a.txt").write_bytes(data)
    bench = Bench(tmp_path)

    expected = "     1\tgrün" + (f"\n[encoding: {label}]" if label else "")

    assert await bench.output(Read(bench.scope), path="a.txt") == expected


async def test_binary_files_are_named_and_not_shown(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    (tmp_path / "a.png").write_bytes(b"\x89PNG\r\n\x1a\n" + bytes(range(256)))
    (tmp_path / "noise").write_bytes(bytes(range(256)) * 4)

    assert "is damaged" in await bench.error(Read(bench.scope), path="a.png")
    assert "binary data of 1024 bytes" in await bench.error(Read(bench.scope), path="noise")


async def test_long_files_and_lines_are_truncated_with_a_note(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    (tmp_path / "long.txt").write_text("x" * 100 + "\n" + ("y" * 99 + "\n") * 5000)
    (tmp_path / "wide.txt").write_text("z" * 100_000 + "\nend\n")

    long = await bench.output(Read(bench.scope), path="long.txt")
    wide = await bench.output(Read(bench.scope), path="wide.txt")

    assert len(long) < MAX_CHARACTERS + 200
    assert "of 5001; continue with offset" in long
    assert wide.endswith("     2\tend\n[1 longer than 2000 characters, cut]")


async def test_oversized_empty_and_missing_files_and_folders_have_their_own_messages(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    with (tmp_path / "huge").open("wb") as file:
        file.truncate(33 * 1024 * 1024)
    (tmp_path / "empty").touch()
    (tmp_path / "folder").mkdir()

    assert "more than 33554432. Look at parts of it" in await bench.error(Read(bench.scope), path="huge")
    assert await bench.output(Read(bench.scope), path="empty") == "[empty file]"
    assert await bench.error(Read(bench.scope), path="none.txt") == "There is no file 'none.txt'"
    assert await bench.error(Read(bench.scope), path="folder") == "Path 'folder' is a folder. Use Glob to list it"
