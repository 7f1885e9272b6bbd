"""The scratch folder of a program: created before it starts, removed after it ended.

Standard library only, because `supervisor.py` imports it and runs without site packages. Files are removed by system
calls on folder descriptors and not by `rm`, which PATH could resolve to a file that the confined program wrote.
"""

import os
from contextlib import suppress


def make_scratch(scratch: str, level: str) -> int:
    """Create the folder and return its descriptor, whose lock marks the folder as in use."""
    import fcntl  # noqa: PLC0415  not on every platform

    os.mkdir(scratch, 0o700)  # noqa: PTH102  pathlib is not worth its import here
    folder = os.open(scratch, os.O_RDONLY | os.O_DIRECTORY)
    # Not `lockf`: its exclusive locks need a writable descriptor, which a folder can't have, and closing any other
    # descriptor of the folder would release them.
    fcntl.flock(folder, fcntl.LOCK_SH)
    for name in ("home", "shm", "empty") if level != "none" else ():
        os.mkdir(name, 0o700, dir_fd=folder)
    return folder


def remove_tree(path: str) -> None:
    """Remove a hostile tree by system calls on descriptors, whatever its depth, modes and links.

    Every folder is first moved to the top of a folder of ours, so that no path gets too long. Raises `OSError` if a
    process that can't be killed keeps writing; `clear_scratch` finds the rest later.
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
    with suppress(FileNotFoundError):  # an interrupted attempt has already moved it
        make_own(path)
        os.rename(path, "0", dst_dir_fd=top)
    while names := os.listdir(top):  # noqa: PTH208
        for name in names:
            number = empty_folder(top, name, device=device, number=number)
    os.close(top)
    os.rmdir(aside)  # noqa: PTH106


def empty_folder(top: int, name: str, *, device: int, number: int) -> int:
    """Remove a folder's files, move its folders to `top`, and remove it. Returns the last number used for a name."""
    folder = open_own(name, top)
    # Another device is a mount, whose files aren't ours to remove.
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
    """Make a folder writable, because without that right even its owner can't move it."""
    parent = os.open(os.path.dirname(path), os.O_RDONLY | os.O_DIRECTORY)  # noqa: PTH120
    try:
        os.close(open_own(os.path.basename(path), parent))  # noqa: PTH119
    finally:
        os.close(parent)


def open_own(name: str, parent: int) -> int:
    """Open a folder for listing and emptying, whatever its mode. Fails for a link."""
    found = os.open(name, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=parent)
    try:
        # `fchmod` rejects O_PATH descriptors, and `chmod` by name could follow a link that was put there.
        os.chmod(f"/proc/self/fd/{found}", 0o700)  # noqa: PTH101
        return os.open(f"/proc/self/fd/{found}", os.O_RDONLY | os.O_DIRECTORY)
    finally:
        os.close(found)
