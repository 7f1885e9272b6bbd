"""Edit changes only the given text and no other byte."""

import stat
from pathlib import Path

import anyio
import pytest
from file_tools import Bench
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pydantic import JsonValue

from example_counts import examples
from metier.tools.base import ToolContext
from metier.tools.files.edit import Edit

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


async def test_unique_text_is_replaced_and_mode_and_other_text_are_kept(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    (tmp_path / "a.py").write_bytes(b"x = 1\ny = 2\nlast")
    (tmp_path / "a.py").chmod(0o750)

    assert await bench.output(Edit(bench.scope), path="a.py", old="y = 2", new="y = 3") == "Edited 'a.py' on line 2"

    assert (tmp_path / "a.py").read_bytes() == b"x = 1\ny = 3\nlast"
    assert stat.S_IMODE((tmp_path / "a.py").stat().st_mode) == 0o750


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (b"a\r\nb\r\nc\r\n", b"a\r\nB\r\nC\r\n"),
        ("\ufeffa\nb\nc\n".encode("utf-16-le"), "\ufeffa\nB\nC\n".encode("utf-16-le")),
        (b"\xef\xbb\xbfa\nb\nc", b"\xef\xbb\xbfa\nB\nC"),
        (b"\xe9\nb\nc\n", b"\xe9\nB\nC\n"),
        (b"a\r\nx\nb\nc\n", b"a\r\nx\nB\nC\n"),
    ],
    ids=["windows lines", "utf-16", "mark", "latin-1", "mixed lines"],
)
async def test_line_endings_and_encoding_of_the_file_are_kept(tmp_path: Path, before: bytes, after: bytes) -> None:
    bench = Bench(tmp_path)
    (tmp_path / "a.txt").write_bytes(before)

    await bench.output(Edit(bench.scope), path="a.txt", old="b\nc", new="B\nC")

    assert (tmp_path / "a.txt").read_bytes() == after


async def test_each_failure_has_a_reason_and_a_hint(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    (tmp_path / "a.py").write_text("def first():\n    return 1\n\ndef second():\n    return 1\n")
    (tmp_path / "latin.txt").write_bytes(b"\xe9t\xe9\n")
    edit = Edit(bench.scope)

    assert await bench.error(edit, path="a.py", old="return 1", new="return 2") == (
        "The old text occurs 2 times, on lines 2, 5. Give more of the text around it, or set replace_all"
    )
    assert "the nearest is line 4: 'def second():'" in await bench.error(edit, path="a.py", old="def secnd():", new="x")
    assert "line 1 matches its first line" in await bench.error(
        edit, path="a.py", old="def first():\n  return", new="x"
    )
    assert "Use Write" in await bench.error(edit, path="none.py", old="a", new="b")
    assert "are the same" in await bench.error(edit, path="a.py", old="def", new="def")
    assert "is empty" in await bench.error(edit, path="a.py", old="", new="b")
    assert "cannot hold '☃'" in await bench.error(edit, path="latin.txt", old="t", new="☃")
    assert "in 2 places" in await bench.output(edit, path="a.py", old="return 1", new="return 2", replace_all=True)


async def test_preview_shows_the_line_numbers_of_the_real_file(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    (tmp_path / "a.txt").write_text("".join(f"{number}\n" for number in range(1, 101)))

    arguments: dict[str, JsonValue] = {"path": "./a.txt", "old": "\n50\n", "new": "\nfifty\n"}
    preview = await Edit(bench.scope).preview(arguments, ToolContext(workspace=tmp_path))

    assert preview.text.startswith("--- a.txt\n")
    assert preview.text.splitlines()[2:] == [
        "@@ -47,7 +47,7 @@", " 47", " 48", " 49", "-50", "+fifty", " 51", " 52", " 53",
    ]  # fmt: skip


LINES = st.sampled_from(["\n", "\r\n"])
TEXT = st.text(alphabet="abé\n\t ☃{}", max_size=30)


@settings(max_examples=examples(150), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    parts=st.tuples(TEXT, TEXT, TEXT, TEXT), form=st.tuples(st.sampled_from(["utf-8", "utf-8-sig", "utf-16"]), LINES)
)
def test_replacing_and_reverting_gives_the_same_bytes(
    tmp_path: Path, parts: tuple[str, str, str, str], form: tuple[str, str]
) -> None:
    head, old, new, tail = f"first\n{parts[0]}", f"O{parts[1]}O", f"N{parts[2]}N", parts[3]
    data = (head + old + tail).replace("\n", form[1]).encode(form[0])
    (tmp_path / "a.txt").write_bytes(data)
    edit, context = Edit(Bench(tmp_path).scope), ToolContext(workspace=tmp_path)

    there: dict[str, JsonValue] = {"path": "a.txt", "old": old, "new": new}
    back: dict[str, JsonValue] = {"path": "a.txt", "old": new, "new": old}
    anyio.run(edit.execute, there, context)
    assert (tmp_path / "a.txt").read_bytes() != data
    anyio.run(edit.execute, back, context)

    assert (tmp_path / "a.txt").read_bytes() == data
