"""A lock file between processes, and between the locks of one."""

import subprocess
import sys
from pathlib import Path

import pytest

from metier.file_lock import FileLock, LockHeld

HOLDER = """
import sys
from pathlib import Path
from metier.file_lock import FileLock
FileLock(Path(sys.argv[1])).acquire()
print("held", flush=True)
sys.stdin.read()
"""


def test_two_locks_of_one_file_exclude_each_other(tmp_path: Path) -> None:
    first, second = FileLock(tmp_path / "lock"), FileLock(tmp_path / "lock")
    first.acquire()

    with pytest.raises(LockHeld):
        second.acquire()

    first.release()
    with second:
        first.release()  # not held: nothing


def test_a_lock_goes_away_with_its_process(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    with subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        with pytest.raises(LockHeld):
            FileLock(path).acquire()
        holder.kill()
        holder.wait(30)

    FileLock(path, wait_seconds=30).acquire()


def test_a_lock_whose_file_was_unlinked_is_not_in_the_way_of_a_new_one(tmp_path: Path) -> None:
    old = FileLock(tmp_path / "lock")
    old.acquire()
    (tmp_path / "lock").unlink()

    with FileLock(tmp_path / "lock"):
        assert (tmp_path / "lock").exists()


def test_a_link_is_not_followed_and_a_folder_that_is_missing_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "elsewhere")

    with pytest.raises(OSError, match="link"):
        FileLock(tmp_path / "link").acquire()
    with pytest.raises(FileNotFoundError):
        FileLock(tmp_path / "missing" / "lock").acquire()
    assert not (tmp_path / "elsewhere").exists()
