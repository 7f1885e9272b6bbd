"""Grep finds the same lines with and without ripgrep, in a fixed order and linear time."""

import shutil
from pathlib import Path

import pytest
from file_tools import Bench

from metier.tools.files import grep
from metier.tools.files.file_replacement import MAX_FILE_BYTES
from metier.tools.files.grep import Grep

pytestmark = [pytest.mark.anyio, pytest.mark.slow]
needs_ripgrep = pytest.mark.skipif(shutil.which("rg") is None, reason="ripgrep is not installed")

FILES = {
    "a.py": b"import os\n\ndef find_me(x):\n    return os.sep\n\ndef other():\n    pass\n",
    "b/windows.txt": b"first line\r\nFind_Me here\r\nend\r\n",
    "b/wide.txt": "\ufefffind_me in UTF-16\n".encode("utf-16-le"),
    "c/latin.txt": b"gr\xfcn find_me\n",
    "c/umlaut.txt": "aéb grün GRÜN\nstraße\n".encode(),
    "c/return.txt": b"a\rb\n",
    "bin.dat": b"find_me\0\1\2",
    "node_modules/x.js": b"find_me\n",
    "runs/log": b"find_me\n",
    "last.txt": b"no newline find_me",
}
STOP = (
    "[Stopped at the limit of {}, before '{}'; there may be more. Narrow 'pattern', 'path' or 'glob', or raise 'limit' "
    "(at most 1000)]"
)
PATTERNS = [
    "find_me", r"\bfind_\w+", "(?i)FIND_ME", "e$", "^e", "^$", r"^\s*def \w+\(", r"a\Wb", "a.b", r"gr[üx]n", "GRÜN",
    "straße",
    r"\d\d", r"[\w-]+_me", r"[^\w]b", "here$", r"x\)|other", "(find|other)_?(me)?", r"a[^x]b", "[]a]b",
    r"\x61\.?b", "[[:alpha:]]+ line",
    "nothing like this", r"\S+$", "a*", r"o{2}|s{1,2}e", r"[a&&b]", r"\pL\p{L}+ grün",
]  # fmt: skip


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return plant(tmp_path_factory.mktemp("tree"))


@pytest.fixture
def large(tmp_path: Path) -> Path:
    """A folder with enough files to use ripgrep."""
    plant(tmp_path)
    (tmp_path / "many").mkdir()
    for number in range(grep.MIN_FILES):
        (tmp_path / "many" / f"{number}.log").write_bytes(b"%d\n" % number)
    return tmp_path


def plant(folder: Path) -> Path:
    for name, data in FILES.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(data)
    (folder / "link.py").symlink_to("a.py")
    return folder


async def test_truncation_is_reported_with_the_limit_and_the_position(tmp_path: Path) -> None:
    (tmp_path / "long.txt").write_text("x" * 500 + "\n")
    (tmp_path / "many.txt").write_text(("y" * 300 + "\n") * 200)
    with (tmp_path / "vast.txt").open("wb") as file:
        file.truncate(MAX_FILE_BYTES + 1)
    bench = Bench(tmp_path)
    grep = Grep(bench.scope)

    cut, note = (await bench.output(grep, pattern="x")).splitlines()
    assert cut.endswith("x [cut: the line has 500 characters]")
    assert (
        note
        == f"[Not searched because they are larger than {MAX_FILE_BYTES} bytes: 1 files, the first of them 'vast.txt']"
    )
    *lines, stop = (await bench.output(grep, pattern="y", path="many.txt", limit=1000)).splitlines()
    assert stop == STOP.format("28000 characters", f"many.txt:{len(lines) + 1}")


async def test_matches_are_ordered_by_path_and_line_with_separate_context(tree: Path) -> None:
    bench = Bench(tree)
    grep = Grep(bench.scope, skip=["runs"])

    assert await bench.output(grep, pattern="find_me") == (
        "a.py:3:def find_me(x):\nb/wide.txt:1:find_me in UTF-16\n"
        "c/latin.txt:1:gr�n find_me\nlast.txt:1:no newline find_me"
    )
    assert await bench.output(grep, pattern="FIND_me", ignore_case=True, glob="*.txt", path="b", context=1) == (
        "b/wide.txt:1:find_me in UTF-16\n--\n"
        "b/windows.txt-1-first line\nb/windows.txt:2:Find_Me here\nb/windows.txt-3-end"
    )
    assert await bench.output(grep, pattern="find_me", files_only=True, limit=2) == (
        "a.py\nb/wide.txt\n" + STOP.format("2 files", "c/latin.txt")
    )
    assert await bench.output(grep, pattern="def", path="a.py", limit=1) == (
        "a.py:3:def find_me(x):\n" + STOP.format("1 lines", "a.py:6")
    )
    assert await bench.output(grep, pattern="zzz") == "No line matches"


async def list_differences(folder: Path, patterns: list[str]) -> dict[tuple[str, bool], tuple[str, str]]:
    """Differences between results with and without ripgrep, by pattern and case."""
    bench = Bench(folder)
    own, fast = Grep(bench.scope), Grep(bench.scope, ripgrep=lambda: shutil.which("rg") or "")
    found = {
        (pattern, ignore_case): (
            await bench.output(own, pattern=pattern, ignore_case=ignore_case, limit=1000),
            await bench.output(fast, pattern=pattern, ignore_case=ignore_case, limit=1000),
        )
        for pattern in patterns
        for ignore_case in (False, True)
    }
    return {key: (expected, got) for key, (expected, got) in found.items() if expected != got}


@needs_ripgrep
async def test_results_are_the_same_with_ripgrep(tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(grep, "MIN_FILES", 1)

    assert await list_differences(tree, PATTERNS) == {}


@needs_ripgrep
async def test_results_are_the_same_with_ripgrep_for_many_files(large: Path) -> None:
    assert await list_differences(large, ["find_me", r"\d\d"]) == {}


async def test_catastrophic_patterns_take_linear_time(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes(b"a" * 200_000 + b"\n")
    bench = Bench(tmp_path)

    for pattern in ("(a+)+$b", "(a|aa)+b", "(a*)*b", "(.*)*x", "a{1,100}b", "(?:a?){50}a{50}b"):
        assert await bench.output(Grep(bench.scope), pattern=pattern) == "No line matches"


@pytest.mark.parametrize(
    "pattern", ["(", "(?=a)", r"(a)\1", "(?s)a.b", r"a\nb", "a\nb", r"\Aa", r"a\z", "x" * 1001, "a{1000}{1000}", "\\"]
)
async def test_unsupported_syntax_is_reported(tmp_path: Path, pattern: str) -> None:
    bench = Bench(tmp_path)

    assert "cannot be used" in await bench.error(Grep(bench.scope), pattern=pattern)


async def test_unsearchable_named_file_is_not_reported_as_without_matches(tmp_path: Path) -> None:
    with (tmp_path / "huge.log").open("wb") as file:
        file.truncate(MAX_FILE_BYTES + 1)
    bench = Bench(tmp_path)

    assert "has 33554433 bytes, more" in await bench.error(Grep(bench.scope), pattern="x", path="huge.log")


async def test_link_to_a_workspace_file_is_searched_like_the_file(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("needle\n", encoding="utf-8")
    (tmp_path / "link.txt").symlink_to("a.txt")
    bench = Bench(tmp_path)

    assert await bench.output(Grep(bench.scope), pattern="needle", path="link.txt") == "a.txt:1:needle"
