"""The scratch folder of a program: created before it starts, removed after it ended.

Imported by `supervisor.py`, which runs without site packages: standard library only. Everything is removed by system
calls on directory descriptors. A program found on PATH could be one that the confined program wrote.
"""

import os
from contextlib import suppress


def make_scratch(scratch: str, level: str) -> int:
    """The descriptor of the folder, whose lock says that it is in use."""
    import fcntl  # noqa: PLC0415  not on every platform

    os.mkdir(scratch, 0o700)  # noqa: PTH102  pathlib is not worth its import here
    folder = os.open(scratch, os.O_RDONLY | os.O_DIRECTORY)
    fcntl.flock(folder, fcntl.LOCK_SH)
    for name in ("home", "shm", "empty") if level != "none" else ():
        os.mkdir(name, 0o700, dir_fd=folder)
    return folder


def remove_tree(path: str) -> None:
    """By system calls on descriptors: no depth, mode or link of a hostile tree stops it or leads it elsewhere.

    Every folder is first moved beside the others in a folder of ours, so that none is deeper than one level. Raises
    `OSError` where a process that would not die continues writing; what is left is found at the next start.
    """
    try:
        os.rmdir(path)  # noqa: PTH106
    except OSError:
        remove_full_tree(path)


def remove_full_tree(path: str) -> None:
    aside = f"{path}.removed"
    os.makedirs(aside, 0o700, exist_ok=True)  # noqa: PTH103
    top = os.open(aside, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    device, number = os.fstat(top).st_dev, 0
    with suppress(FileNotFoundError):  # it was moved already where an earlier attempt was cut short
        make_own(path)
        os.rename(path, "0", dst_dir_fd=top)
    while names := os.listdir(top):  # noqa: PTH208
        for name in names:
            number = empty_folder(top, name, device=device, number=number)
    os.close(top)
    os.rmdir(aside)  # noqa: PTH106


def empty_folder(top: int, name: str, *, device: int, number: int) -> int:
    """Remove the files of a folder, move its folders up to `top`, remove it. The last number that was given away."""
    folder = open_own(name, top)
    for entry in os.listdir(folder) if os.fstat(folder).st_dev == device else ():  # noqa: PTH208
        try:
            os.unlink(entry, dir_fd=folder)
        except OSError:
            os.close(open_own(entry, folder))
            number += 1
            os.rename(entry, f"{os.getpid()}-{number}", src_dir_fd=folder, dst_dir_fd=top)
    os.close(folder)
    os.rmdir(name, dir_fd=top)
    return number


def make_own(path: str) -> None:
    """A folder without the right to write cannot be moved by its owner."""
    parent = os.open(os.path.dirname(path), os.O_RDONLY | os.O_DIRECTORY)  # noqa: PTH120
    try:
        os.close(open_own(os.path.basename(path), parent))  # noqa: PTH119
    finally:
        os.close(parent)


def open_own(name: str, parent: int) -> int:
    """A folder that may be listed and emptied, whatever its mode was; a link is refused."""
    found = os.open(name, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=parent)
    try:
        os.chmod(f"/proc/self/fd/{found}", 0o700)  # noqa: PTH101
        return os.open(f"/proc/self/fd/{found}", os.O_RDONLY | os.O_DIRECTORY)
    finally:
        os.close(found)
