"""Protected paths that a confined program created: ignored while it runs, moved to quarantine when it ends.

A sandbox cannot block the creation of a single name in a writable folder. So each launch is recorded in
`~/.agent/confined`, which no confined program can access: the workspace, and its missing protected paths. While the
record exists, none of these paths is read (`is_unsettled`). When the program has ended, those that appeared are moved
away, then the record is deleted. The program's supervisor holds a lock on the record. A record without a lock belongs
to a killed supervisor, and the next run settles it.

Imported by `supervisor.py`, which runs without site packages: standard library only.
"""

import os
import stat
import time
from contextlib import suppress

_FRESH_NS = 100_000_000
"""Two changes of a folder within one tick of the kernel's clock have the same timestamp, so a younger timestamp proves
nothing.
"""
_FOLDER = getattr(os, "O_PATH", 0) | getattr(os, "O_DIRECTORY", 0) | getattr(os, "O_CLOEXEC", 0)
_ADOPTED = "="
"""Prefix of a path in a record that a tool of the agent wrote with the user's consent."""


class Record:
    """One launch: a workspace, identified by device and inode, and its missing protected paths."""

    def __init__(self, mark: str, text: str) -> None:
        self.mark = mark
        # No path contains NUL.
        self.workspace, self.identity, self.quarantine, *names = text.split("\0")
        adopted = {name[1:] for name in names if name.startswith(_ADOPTED)}
        self.missing = [name for name in names if not name.startswith(_ADOPTED) and name not in adopted]

    def find(self, path: str) -> str:
        """Return the missing protected path that is `path` or contains it.

        Compares names, not inodes: a program that swaps files meanwhile must not affect the result.
        """
        whole = folder = os.path.abspath(path)  # noqa: PTH100  as text: links of the program must not count
        # Up to the root, which is its own parent.
        while folder != (folder := os.path.dirname(folder)):  # noqa: PTH120
            if _identify(folder) == self.identity:
                inner = f"{whole[len(folder.rstrip('/')) + 1 :]}/"
                return next((name for name in self.missing if inner.startswith(f"{name}/")), "")
        return ""


type Records = tuple[int, tuple[Record, ...]]
"""Modification time of the folder of records, and the records."""
_last: tuple[str, Records] = ("", (0, ()))


def record_launch(mark: str, *, workspace: str, missing: list[str], quarantine: str) -> tuple[int, str]:
    """Create a record, and return its locked descriptor and its path. Raises `OSError`.

    `quarantine` may be missing; if it is empty, paths are renamed in place.
    """
    import fcntl  # noqa: PLC0415  not on every platform

    folder = _locate()
    os.makedirs(folder, 0o700, exist_ok=True)  # noqa: PTH103  pathlib is not worth its import in a supervisor
    record, draft = f"{folder}/{mark}", f"{folder}/.{mark}"
    # The lock belongs to this descriptor: the kernel releases it even if the supervisor is killed.
    descriptor = os.open(draft, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        # Locked and written before it gets its name: a record without a lock counts as abandoned.
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        fields = [workspace, _identify(workspace), quarantine and f"{quarantine}/{mark}", *missing]
        os.write(descriptor, os.fsencode("\0".join(fields)))
        os.rename(draft, record)  # noqa: PTH104
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor, record


def read_records() -> Records:
    """Return the records of programs that run or whose supervisor was killed."""
    global _last  # noqa: PLW0603
    folder = _locate()
    try:
        # Before the listing, so that a change during the listing makes the next call read again.
        changed = os.stat(folder).st_mtime_ns  # noqa: PTH116
        if _last[0] == folder and _last[1][0] == changed:
            return _last[1]
        names = [name for name in os.listdir(folder) if not name.startswith(".")]  # noqa: PTH208
    except OSError:
        return 0, ()
    found = changed, tuple(record for name in names if (record := _read(f"{folder}/{name}")) is not None)
    if time.time_ns() - changed > _FRESH_NS:
        _last = folder, found
    return found


def is_unsettled(path: str) -> bool:
    """Return True if a protected path appeared while a confined program was running: it must not be read."""
    return any(record.find(path) for record in read_records()[1])


def adopt(path: str) -> None:
    """Exempt a path from quarantine: a tool of the agent is about to replace its whole content."""
    folder = _locate()
    for name in os.listdir(folder) if read_records()[1] else ():  # noqa: PTH208
        record = _read(f"{folder}/{name}")
        if record is not None and (found := record.find(path)):
            with suppress(OSError):
                descriptor = os.open(f"{folder}/{name}", os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC)
                os.write(descriptor, os.fsencode(f"\0{_ADOPTED}{found}"))
                os.close(descriptor)
                # Appending to a file doesn't change the time of its folder, by which `read_records` detects changes.
                os.utime(folder)


def settle(path: str) -> list[str]:
    """Move away the paths of a record that appeared, then delete the record. Returns their new paths.

    If a path cannot be moved, the record stays, and so the path stays ignored.
    """
    record = _read(path)
    if record is None:
        return []
    moved: list[str] = []
    try:
        moved.extend(place for name in record.missing if (place := _move_away(record, name)))
    except OSError as error:
        # The record must stay: without it, the path that could not be moved would be read.
        return [*moved, f"{record.workspace} (not moved, and not read: {error.strerror})"]
    with suppress(OSError):
        os.unlink(path)  # noqa: PTH108
    return moved


def settle_abandoned() -> None:
    """Settle the records whose supervisor was killed."""
    folder = _locate()
    if not read_records()[1]:
        return
    import fcntl  # noqa: PLC0415  not on every platform

    for name in os.listdir(folder):  # noqa: PTH208
        with suppress(OSError):
            descriptor = os.open(f"{folder}/{name}", os.O_RDONLY | os.O_CLOEXEC)
            try:
                # Fails for a record whose supervisor is still running.
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                settle(f"{folder}/{name}")
            finally:
                os.close(descriptor)


def _move_away(record: Record, name: str) -> str:
    """Move a path, and return its new path; empty if it does not exist. A link is moved, not followed."""
    *folders, last = name.split("/")
    try:
        here = os.open(record.workspace, _FOLDER)
    except FileNotFoundError:
        return ""
    passed = ""
    try:
        for part in folders:
            _open_up(here, stat.S_IXUSR)
            try:
                inner = os.open(part, _FOLDER | os.O_NOFOLLOW, dir_fd=here)
            # The program replaced a folder: a link is moved itself, and a file has nothing below it.
            except NotADirectoryError:
                if not stat.S_ISLNK(os.stat(part, dir_fd=here, follow_symlinks=False).st_mode):
                    return ""
                last = part
                break
            os.close(here)
            here, passed = inner, f"{passed}{part}/"
        _open_up(here, stat.S_IXUSR)
        # Raises if the path did not appear, before any permission of its folder is changed.
        os.stat(last, dir_fd=here, follow_symlinks=False)
        _open_up(here, stat.S_IRWXU)
        return _rename(record, here, f"{passed}{last}")
    except FileNotFoundError:
        return ""
    finally:
        os.close(here)


def _rename(record: Record, folder: int, name: str) -> str:
    """Move a path to the quarantine, or rename it in place if that is on another disk."""
    last = name.rpartition("/")[2]
    if record.quarantine:
        place = f"{record.quarantine}/{name.replace('/', '-')}.quarantined"
        with suppress(OSError):
            os.makedirs(record.quarantine, 0o700, exist_ok=True)  # noqa: PTH103
            os.rename(last, place, src_dir_fd=folder)
            return place
    os.rename(last, f"{last}.quarantined-{record.mark}", src_dir_fd=folder, dst_dir_fd=folder)
    return f"{record.workspace}/{name}.quarantined-{record.mark}"


def _open_up(folder: int, needed: int) -> None:
    """Restore permissions that a program may have removed to protect its files."""
    mode = stat.S_IMODE(os.fstat(folder).st_mode)
    if mode & needed != needed:
        os.chmod(f"/proc/self/fd/{folder}", mode | needed)  # noqa: PTH101


def _read(record: str) -> Record | None:
    try:
        descriptor = os.open(record, os.O_RDONLY | os.O_CLOEXEC)
        try:
            return Record(os.path.basename(record), os.fsdecode(os.read(descriptor, 1 << 20)))  # noqa: PTH119
        finally:
            os.close(descriptor)
    except (OSError, ValueError):
        return None


def _locate() -> str:
    return os.path.expanduser("~/.agent/confined")  # noqa: PTH111


def _identify(folder: str) -> str:
    try:
        found = os.stat(folder)  # noqa: PTH116
    except OSError:
        return ""
    return f"{found.st_dev}:{found.st_ino}"
