"""What stands on disk while a program runs: its scratch folder, and empty folders at places that must stay free.

Imported by `supervisor.py`, which runs without site packages: standard library only. Everything is removed by system
calls on directory descriptors. A program found on PATH could be one that the confined program wrote.
"""

import os
import stat
from contextlib import suppress

HOLDER, HOLDER_PARENT = 0o1555, 0o1755
"""The modes by which a folder that holds a place, and one made around it, are known."""


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
    `OSError` where a process that would not die goes on writing; what is left is found at the next start.
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


def hold_places(workspace: str, held: list[str]) -> int:
    """Make the empty folders, and keep a shared lock, so that only the last of several programs removes them."""
    if not held:
        return -1
    import fcntl  # noqa: PLC0415  not on every platform

    place = os.open(workspace, os.O_RDONLY | os.O_DIRECTORY)
    fcntl.flock(place, fcntl.LOCK_SH)
    for name in list_places(held):
        try:
            os.mkdir(f"{workspace}/{name}")  # noqa: PTH102
            os.chmod(f"{workspace}/{name}", HOLDER if name in held else HOLDER_PARENT)  # noqa: PTH101
        except OSError:
            continue  # it is there, or cannot be made by the command either
    return place


def list_places(held: list[str]) -> list[str]:
    """With the folders around them, outer ones first."""
    cuts = ((name, index) for name in held for index, letter in enumerate(name) if letter == "/")
    return sorted({*held, *(name[:index] for name, index in cuts)})


def release_places(place: int, workspace: str, held: list[str]) -> None:
    if place < 0:
        return
    import fcntl  # noqa: PLC0415  not on every platform

    try:
        fcntl.flock(place, fcntl.LOCK_EX | fcntl.LOCK_NB)
        for name in reversed(list_places(held)):
            remove_holder(f"{workspace}/{name}")
    except OSError:
        return  # another program relies on them
    finally:
        os.close(place)


def remove_holder(path: str) -> None:
    """Only a folder that was made to hold a place, and only while it is empty."""
    try:
        if is_holder(path):
            os.chmod(path, 0o755)  # noqa: PTH101, S103  a person may have put a file into it, and keeps it
            os.rmdir(path)  # noqa: PTH106
    except OSError:
        return


def is_holder(path: str) -> bool:
    try:
        return os.lstat(path).st_mode in (stat.S_IFDIR | HOLDER, stat.S_IFDIR | HOLDER_PARENT)
    except OSError:
        return False
