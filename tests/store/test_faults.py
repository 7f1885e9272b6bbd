"""Full, read-only, damaged and locked disks: one clear error, no partial writes, later recovery."""

import json
import os
import shutil
import sqlite3
import subprocess
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import anyio
import pytest

from metier.store.base import StoredEntry
from metier.store.failures import StoreDamaged, StoreUnavailable
from metier.store.sqlite.connection import check_local_disk, get_file_system
from metier.store.sqlite.store import SqliteStore, open_sqlite_store
from metier.testing.store_case import build_entries, build_run

pytestmark = pytest.mark.slow

CHILD = Path(__file__).with_name("store_child.py")

type Open = Callable[[], Awaitable[SqliteStore]]


def run_child(*arguments: str | Path, before: str = "") -> dict[str, Any]:
    """Run the child, after shell commands in its own mount namespace if there are any."""
    command = [sys.executable, str(CHILD), *map(str, arguments)]
    if before:
        command = ["unshare", "-m", "sh", "-ec", f'{before}\nexec "$@"', "sh", *command]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def can_mount() -> bool:
    if sys.platform != "linux" or shutil.which("unshare") is None:
        return False
    probe = ["unshare", "-m", "mount", "-t", "tmpfs", "-o", "size=1m", "none", "/mnt"]
    return subprocess.run(probe, capture_output=True, check=False).returncode == 0


@pytest.mark.skipif(not can_mount(), reason="mounting is not permitted here")
@pytest.mark.parametrize("size_kib", [40960, 41000, 41511, 42330])
def test_a_full_disk_rejects_complete_entries_and_the_run_continues_after_cleanup(
    size_kib: int, tmp_path: Path
) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    before = f"mount -t tmpfs -o size={size_kib}k none '{disk}'\nhead -c 20000000 /dev/zero > '{disk}/filler'"

    report = run_child("fill", disk / "state.db", disk / "filler", before=before)

    assert report == {
        "had_ballast": True,
        "failure": "StoreFull: Free some space, for example with `agent runs gc`, then resume the run",
        "lost": 0,
        "deleted_while_full": True,
        "released": True,
        "total_matches": True,
        "restored": True,
    }


def test_an_append_fails_if_the_file_cannot_grow_and_the_store_recovers(database: Path) -> None:
    report = run_child("limit", database)

    assert report["failure"] == "StoreUnavailable"
    assert report["entries"] > 5
    assert report["total_matches"]


@pytest.mark.skipif(not can_mount(), reason="mounting is not permitted here")
@pytest.mark.parametrize("exists", [False, True])
def test_a_read_only_folder_is_refused_at_the_start(exists: bool, tmp_path: Path) -> None:
    if exists:
        assert run_child("open", tmp_path / "state.db") == {"ready": True}
    before = f"mount --bind '{tmp_path}' '{tmp_path}'\nmount -o remount,ro,bind '{tmp_path}'"

    report = run_child("open", tmp_path / "state.db", before=before)

    assert report["failed"] == "StoreUnavailable"
    assert str(tmp_path) in report["message"]
    assert report["hint"] == "Check that you can write to this folder"


@pytest.mark.anyio
async def test_a_file_instead_of_a_folder_is_rejected(tmp_path: Path) -> None:
    (tmp_path / "runs").write_text("a file")

    with pytest.raises(StoreUnavailable, match="cannot be opened"):
        await open_sqlite_store(tmp_path / "runs" / "state.db")


@pytest.mark.anyio
async def test_a_truncated_log_loads_as_a_prefix_of_the_journal(open_store: Open, tmp_path: Path) -> None:
    store = await open_store()
    await store.create_run(build_run("r1"))
    lease = await store.take_lease("r1", owner="ann", seconds=15)
    for seq in range(1, 13):
        await store.append(lease, seq, build_entries(seq), durable=False)
    source = tmp_path / "runs"
    log = (source / "state.db-wal").read_bytes()
    lengths: set[int] = set()
    for cut in [*range(0, len(log), 1777), *range(len(log) - 4200, len(log), 211)]:
        torn = tmp_path / f"cut-{cut}"
        torn.mkdir()
        shutil.copy(source / "state.db", torn)
        (torn / "state.db-wal").write_bytes(log[:cut])

        again = await open_sqlite_store(torn / "state.db")
        entries = await again.read_journal("r1")
        await again.close()

        assert entries == build_entries(1, len(entries))
        lengths.add(len(entries))
    await store.close()

    assert lengths == set(range(12))


@pytest.mark.anyio
async def test_a_changed_byte_in_an_entry_is_detected_and_located(open_store: Open, database: Path) -> None:
    store = await open_store()
    await store.create_run(build_run("r1"))
    lease = await store.take_lease("r1", owner="ann", seconds=15)
    await store.append(lease, 1, [StoredEntry(seq, "note", b"needle %d" % seq) for seq in (1, 2, 3)])
    blob = await store.put_blob(b"a blob of bytes")
    await store.close()
    replace_bytes(database, b"needle 2", b"nEedle 2")
    replace_bytes(database, b"a blob of", b"a blOb of")

    store = await open_store()
    with pytest.raises(StoreDamaged, match="Entry 2 of run 'r1' is not what was written"):
        await store.read_journal("r1")
    with pytest.raises(StoreDamaged, match="are not those that were put"):
        await store.get_blob(blob)
    assert len(await store.read_journal("r1", limit=1)) == 1
    await store.close()


@pytest.mark.anyio
async def test_a_missing_entry_is_detected(open_store: Open, database: Path) -> None:
    store = await open_store()
    await store.create_run(build_run("r1"))
    lease = await store.take_lease("r1", owner="ann", seconds=15)
    await store.append(lease, 1, build_entries(1, 5))
    with sqlite3.connect(database) as other:
        other.execute("DELETE FROM journal WHERE seq = 3")
    other.close()

    with pytest.raises(StoreDamaged, match="Entry 3 of run 'r1' is missing"):
        await store.read_journal("r1")
    await store.close()


@pytest.mark.parametrize("content", [b"this is not a database at all, " * 100, b"SQLite format 3\x00" + b"\xff" * 5000])
def test_a_file_that_is_not_a_database_is_rejected_and_not_changed(content: bytes, database: Path) -> None:
    database.parent.mkdir()
    database.write_bytes(content)

    with pytest.raises(StoreDamaged):
        anyio.run(open_sqlite_store, database)

    assert database.read_bytes() == content


@pytest.mark.anyio
async def test_a_lock_of_another_program_blocks_neither_readers_nor_the_event_loop(
    open_store: Open, database: Path
) -> None:
    store = await open_store()
    await store.create_run(build_run("r1"))
    lease = await store.take_lease("r1", owner="ann", seconds=15)
    other = sqlite3.connect(database, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    finished = anyio.Event()

    async def append() -> None:
        await store.append(lease, 1, build_entries(1), durable=False)
        finished.set()

    with anyio.fail_after(100):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(append)
            for _ in range(100):
                await anyio.lowlevel.checkpoint()
                assert await store.read_journal("r1") == []
            assert not finished.is_set()
            other.execute("ROLLBACK")
            await finished.wait()

    assert await store.read_journal("r1") == build_entries(1)
    other.close()
    await store.close()


@pytest.mark.anyio
async def test_a_lock_held_for_too_long_is_a_clear_and_temporary_failure(database: Path) -> None:
    store = await open_sqlite_store(database, lock_timeout_seconds=0.05)
    await store.create_run(build_run("r1"))
    other = sqlite3.connect(database, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")

    with pytest.raises(StoreUnavailable, match="is locked by another process"):
        await store.take_lease("r1", owner="ann", seconds=15)
    other.execute("ROLLBACK")
    other.close()

    assert (await store.take_lease("r1", owner="ann", seconds=15)).owner == "ann"
    await store.close()


def test_only_the_owner_may_read_the_files(database: Path) -> None:
    old = os.umask(0)
    try:
        anyio.run(_open_and_write, database)
    finally:
        os.umask(old)


async def _open_and_write(database: Path) -> None:
    store = await open_sqlite_store(database)
    await store.create_run(build_run("r1"))
    modes = {path.name: path.stat().st_mode & 0o777 for path in database.parent.iterdir()}
    await store.close()
    assert modes == dict.fromkeys(("state.db", "state.db-wal", "state.db-shm", "state.db.ballast"), 384)


def replace_bytes(path: Path, old: bytes, new: bytes) -> None:
    content = path.read_bytes()
    assert old in content
    path.write_bytes(content.replace(old, new))


MOUNTS = """\
22 1 254:0 / / rw,relatime - ext4 /dev/vda rw
30 22 0:30 / /home rw,relatime shared:1 - nfs4 server:/home rw
31 30 0:31 / /home/ann/local\\040disk rw - xfs /dev/vdb rw
32 22 0:32 / /mnt/a rw - ext4 /dev/vdc rw
33 22 0:33 / /mnt/a rw - cifs //server/a rw
broken line
"""


@pytest.mark.parametrize(
    ("folder", "kind"),
    [
        ("/srv", "ext4"),
        ("/home", "nfs4"),
        ("/homes", "ext4"),
        ("/home/ann/runs", "nfs4"),
        ("/home/ann/local disk/runs", "xfs"),
        ("/mnt/a/b", "cifs"),
    ],
)
def test_the_file_system_of_a_folder_comes_from_the_nearest_mount(folder: str, kind: str) -> None:
    assert get_file_system(folder, MOUNTS) == kind


def test_a_network_file_system_is_refused(tmp_path: Path) -> None:
    mounts = tmp_path / "mountinfo"
    mounts.write_text(MOUNTS)

    with pytest.raises(StoreUnavailable, match="network file system \\(nfs4\\)"):
        check_local_disk(Path("/home/ann/runs"), mounts=mounts)
    check_local_disk(Path("/srv"), mounts=mounts)
    check_local_disk(Path("/srv"), mounts=tmp_path / "missing")
