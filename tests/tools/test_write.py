"""Write replaces a file atomically, and a crash at any point can be evaluated afterwards."""

import hashlib
import os
import signal
import stat
import subprocess
import sys
from pathlib import Path

import anyio
import pytest
from file_tools import Bench
from msgspec.structs import replace

from metier.tools.base import ToolContext
from metier.tools.files.edit import Write
from metier.tools.files.file_replacement import NO_FILE
from metier.tools.process.spool import read_spool

pytestmark = pytest.mark.anyio

KILLED_AT = """
import os, signal, sys, anyio
from pathlib import Path
from metier.tools.base import ToolContext
from metier.tools.files.scope import Scope
from metier.tools.files.edit import Write
call, workspace, spool = sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3])
left = int(sys.argv[4])
def watch(event, arguments):
    global left
    if event == call and ("tmp" in str(arguments) or call == "os.mkdir"):
        left -= 1
        if left == 0:
            os.kill(os.getpid(), signal.SIGKILL)
sys.addaudithook(watch)
context = ToolContext(workspace=workspace, idempotency_key="k", spool=spool)
anyio.run(Write(Scope([workspace])).execute, {"path": "sub/a.txt", "content": "new"}, context)
"""


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


def make_context(folder: Path) -> ToolContext:
    spool = folder.parent / f"{folder.name}-spool"
    spool.mkdir(exist_ok=True)
    return ToolContext(workspace=folder, idempotency_key="k", spool=spool / "s1-1")


async def test_file_is_created_with_its_folders_and_keeps_its_mode_when_replaced(tmp_path: Path) -> None:
    bench = Bench(tmp_path)

    assert await bench.output(Write(bench.scope), path="a/b/c.sh", content="one\n") == "Created 'a/b/c.sh', 4 bytes"
    (tmp_path / "a/b/c.sh").chmod(0o755)
    assert await bench.output(Write(bench.scope), path="a/b/c.sh", content="zwei é\n") == "Replaced 'a/b/c.sh', 8 bytes"

    assert (tmp_path / "a/b/c.sh").read_text(encoding="utf-8") == "zwei é\n"
    assert stat.S_IMODE((tmp_path / "a/b/c.sh").stat().st_mode) == 0o755
    assert [path.name for path in (tmp_path / "a/b").iterdir()] == ["c.sh"]


async def test_a_hard_link_to_an_outside_file_is_not_written_through(tmp_path: Path) -> None:
    folder = tmp_path / "workspace"
    folder.mkdir()
    (tmp_path / "outside.txt").write_text("theirs")
    os.link(tmp_path / "outside.txt", folder / "a.txt")
    (folder / "link.txt").symlink_to("a.txt")
    bench = Bench(folder)

    assert (await bench.call(Write(bench.scope), path="a.txt", content="mine")).ok
    assert "is a symbolic link" in await bench.error(Write(bench.scope), path="link.txt", content="mine")

    assert (tmp_path / "outside.txt").read_text() == "theirs"
    assert (folder / "a.txt").read_text() == "mine"


async def test_approved_change_is_rejected_if_the_file_changed(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    (tmp_path / "a.txt").write_text("one\ntwo\n")
    preview = await Write(bench.scope).preview(
        {"path": "a.txt", "content": "one\nzwei\n"}, ToolContext(workspace=tmp_path)
    )
    held = ToolContext(workspace=tmp_path, base_hash=preview.base)
    (tmp_path / "a.txt").write_text("somebody else\n")

    refused = await bench.call(Write(bench.scope), held, path="a.txt", content="one\nzwei\n")
    (tmp_path / "a.txt").write_text("one\ntwo\n")
    done = await bench.call(Write(bench.scope), held, path="a.txt", content="one\nzwei\n")

    assert (refused.ok, refused.meta["code"]) == (False, "conflict")
    assert done.ok
    assert preview.text.splitlines() == ["--- a.txt", "+++ a.txt", "@@ -1,2 +1,2 @@", " one", "-two", "+zwei"]
    assert preview.base == hashlib.sha256(b"one\ntwo\n").hexdigest()


async def test_preview_of_a_new_or_large_file_is_limited_and_changes_nothing(tmp_path: Path) -> None:
    bench = Bench(tmp_path)

    write, context = Write(bench.scope), ToolContext(workspace=tmp_path)
    new = await write.preview({"path": "x/new.txt", "content": "hello"}, context)
    large = await write.preview({"path": "large.txt", "content": "line\n" * 50_000}, context)

    assert new.base == NO_FILE
    assert new.text.startswith("--- x/new.txt\n")
    assert new.text.endswith("+hello\n\\ No newline at end of file\n")
    assert len(large.text) < 21_000
    assert os.listdir(tmp_path) == []  # noqa: PTH208  in a test nothing waits


@pytest.mark.parametrize(("found", "expected"), [("old", None), ("new", True), ("other", None)])
async def test_file_content_shows_the_outcome_after_a_crash(tmp_path: Path, found: str, expected: bool | None) -> None:
    folder = tmp_path / "workspace"
    folder.mkdir()
    bench, context = Bench(folder), make_context(folder)
    (folder / "a.txt").write_text("old")
    assert (await bench.call(Write(bench.scope), context, path="a.txt", content="new")).ok
    (folder / "a.txt").write_text(found)
    assert context.spool is not None

    result = await Write(bench.scope).probe({"path": "a.txt", "content": "new"}, context)

    assert (result.ok if result else None) is expected
    # Without a note the engine takes the step for never begun and runs it; with one it asks a person.
    assert read_spool(context.spool).started is (found != "old")


KILLS = [("os.mkdir", 1, False)] + [
    (call, count, had_file) for call in ("open", "os.rename") for count in (1, 2) for had_file in (True, False)
]


@pytest.mark.parametrize("kill", KILLS, ids=str)
async def test_killed_writer_leaves_the_old_file_intact_and_is_repeated(
    tmp_path: Path, kill: tuple[str, int, bool]
) -> None:
    call, count, had_file = kill
    folder = tmp_path / "workspace"
    folder.mkdir()
    if had_file:
        (folder / "sub").mkdir()
        (folder / "sub" / "a.txt").write_text("old")
    bench, context = Bench(folder), make_context(folder)

    command = [sys.executable, "-c", KILLED_AT, call, str(folder), str(context.spool), str(count)]
    done = await anyio.run_process(command, check=False)
    target = folder / "sub" / "a.txt"
    assert done.returncode == -signal.SIGKILL, done.stderr
    assert (target.read_text() if target.exists() else None) == ("old" if had_file else None)

    assert await Write(bench.scope).probe({"path": "sub/a.txt", "content": "new"}, context) is None
    assert context.spool is not None
    assert not read_spool(context.spool).started
    again = await bench.call(Write(bench.scope), replace(context), path="sub/a.txt", content="new")

    assert again.ok
    assert target.read_text() == "new"
    assert [path.name for path in target.parent.iterdir()] == ["a.txt"]


WATCHED = """
import os, stat, sys, anyio
from pathlib import Path
from metier.tools.base import ToolContext
from metier.tools.files.scope import Scope
from metier.tools.files.edit import Write
workspace = Path(sys.argv[1])
def watch(event, arguments):
    if event in ("os.chmod", "os.chown", "os.rename"):
        for file in workspace.glob(".metier-*"):
            status = file.stat()
            print(event, status.st_size, oct(stat.S_IMODE(status.st_mode)))
sys.addaudithook(watch)
os.umask(0)
anyio.run(Write(Scope([workspace])).execute, {"path": "a.txt", "content": "new"}, ToolContext(workspace=workspace))
"""


def test_private_file_stays_private_while_it_is_replaced(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("old")
    (tmp_path / "a.txt").chmod(0o600)

    done = subprocess.run(
        [sys.executable, "-c", WATCHED, str(tmp_path)], capture_output=True, text=True, check=True, timeout=60
    )

    seen = [line.split() for line in done.stdout.splitlines()]
    assert {mode for _, _, mode in seen} == {"0o600"}
    assert [size for event, size, _ in seen if event == "os.chmod"] == ["0"]
    assert (tmp_path / "a.txt").read_text() == "new"
