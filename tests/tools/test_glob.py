"""Glob finds files by pattern, newest first, and skips generated folders."""

import os
from pathlib import Path

import pytest
from file_tools import Bench

from metier.tools.files.glob import MAX_FILES, Glob, PathPattern
from metier.tools.files.grep import Grep

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


def make(folder: Path, *names: str) -> None:
    for age, name in enumerate(names):
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(name)
        os.utime(path, (10_000 - age, 10_000 - age))


async def test_newest_files_come_first_and_generated_folders_are_skipped_unless_named(tmp_path: Path) -> None:
    make(
        tmp_path,
        "b.py",
        "src/a.py",
        "src/x/c.py",
        "node_modules/d.py",
        ".git/e.py",
        "runs/f.py",
        ".github/g.py",
        "h.txt",
    )
    (tmp_path / "link.py").symlink_to("b.py")
    glob = Glob(Bench(tmp_path).scope, skip=["runs"])
    bench = Bench(tmp_path)

    assert await bench.output(glob, pattern="*.py") == "b.py\nsrc/a.py\nsrc/x/c.py\n.github/g.py"
    assert await bench.output(glob, pattern="src/*.py") == "src/a.py"
    assert await bench.output(glob, pattern="**/*.py", path="src") == "src/a.py\nsrc/x/c.py"
    assert await bench.output(glob, pattern="node_modules/**") == "node_modules/d.py"
    assert await bench.output(glob, pattern="*.none") == "No file matches"
    assert "leads out" in await bench.error(glob, pattern="*", path="..")
    assert "without '..'" in await bench.error(glob, pattern="../*")


async def test_long_lists_are_truncated_with_a_note(tmp_path: Path) -> None:
    make(tmp_path, *(f"{number}.txt" for number in range(MAX_FILES + 5)))
    bench = Bench(tmp_path)

    lines = (await bench.output(Glob(bench.scope), pattern="*")).splitlines()

    assert lines[0] == "0.txt"
    (note,) = lines[MAX_FILES:]
    assert note == (
        f"[Stopped at the limit of {MAX_FILES} files: the newest {MAX_FILES} of {MAX_FILES + 5} that match are shown. "
        "Narrow 'pattern', or name a folder by 'path', to see the others]"
    )


async def test_a_walk_that_hits_a_limit_names_the_folder_and_how_to_continue(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("metier.tools.files.glob.MAX_ENTRIES", 6)
    make(tmp_path, *(f"{folder}/{number}.txt" for folder in "abc" for number in range(3)))
    bench = Bench(tmp_path)

    for tool, arguments in ((Glob(bench.scope), {"pattern": "*"}), (Grep(bench.scope), {"pattern": "txt"})):
        last = (await bench.output(tool, **arguments)).splitlines()[-1]
        assert last == (
            "[Stopped at the limit of 6 entries, in folder 'b': files behind it were not looked at. "
            "Name a smaller folder by 'path']"
        )


async def test_folders_that_are_too_deep_are_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("metier.tools.files.glob.MAX_DEPTH", 2)
    make(tmp_path, "a/b/c/d.txt", "a/b/e.txt")
    bench = Bench(tmp_path)

    lines = (await bench.output(Glob(bench.scope), pattern="*")).splitlines()

    assert lines[0] == "a/b/e.txt"
    assert lines[1].startswith("[Not looked into 'a/b/c' and whatever else is beneath more than 2 folders")


@pytest.mark.parametrize(
    ("pattern", "matching", "other"),
    [
        ("*.py", ["a.py", "x/y/a.py", ".py"], ["a.pyc", "a.py/b"]),
        ("src/**/*.py", ["src/a.py", "src/x/y/a.py"], ["a.py", "xsrc/a.py"]),
        ("**/test_*", ["test_a", "x/test_a"], ["x/atest_"]),
        ("a/**", ["a/b", "a/b/c"], ["b/a"]),
        ("*.{ts,tsx}", ["a.ts", "b/a.tsx"], ["a.t"]),
        ("[ab]?.txt", ["a1.txt", "x/b2.txt"], ["c1.txt", "a.txt"]),
        ("[!a].x", ["b.x"], ["a.x"]),
        ("a/*/c", ["a/b/c"], ["a/c", "a/b/b/c"]),
        ("**/a/**/b", ["a/b", "x/a/y/z/b"], ["a", "b"]),
    ],
)
def test_patterns_match_as_expected(pattern: str, matching: list[str], other: list[str]) -> None:
    compiled = PathPattern(pattern)

    assert [path for path in matching if not compiled.matches(path)] == []
    assert [path for path in other if compiled.matches(path)] == []


def test_hostile_patterns_are_matched_fast() -> None:
    assert not PathPattern("*a" * 100 + "b").matches("a" * 5000)
    assert not PathPattern("**/a/" * 15 + "b").matches("a/" * 500 + "c")
