"""Read a file that becomes a prompt, a rule or code. No link leads out of its folder, no special file is waited for.

Definitions, context files, policies and the files of skills all come through here, in clones and in own folders alike.
"""

import errno
import os
from functools import cache
from pathlib import Path

from metier.definitions.files.contained_path import Opened, Opener, choose_opener, open_by_kernel, read_by_kernel
from metier.errors import ToolFailed

_FIRST_READ = 64 * 1024


def read_contained(file: Path, *, within: Path, limit: int) -> bytes:
    """At most `limit + 1` bytes of a regular file below `within`, whichever links are on the way.

    Raises `OSError`, whose `strerror` says what stands in the way: also for a link that leads out, and for a pipe.
    """
    root = os.open(within, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        opened = _open(root, file, within)
    finally:
        os.close(root)
    try:
        if opened.is_folder:
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(file))
        return _read(opened.descriptor, limit + 1)
    finally:
        os.close(opened.descriptor)


def is_absent(path: str | Path) -> bool:
    """Nothing has this name.

    Where a folder on the way may not be searched, or links lead in a circle, nothing is known: a caller that counted
    that as absent would leave out rules that a person wrote. It reads, and says why it cannot.
    """
    try:
        os.lstat(path)
    except (FileNotFoundError, NotADirectoryError, ValueError):
        return True
    except OSError:
        return False
    return False


def is_contained(path: str, *, base: str) -> bool:
    """Where `path` really leads lies in `base`, which is a real path itself."""
    real = os.path.realpath(path)
    return real == base or real.startswith(base.rstrip("/") + "/")


def _open(root: int, file: Path, within: Path) -> Opened:
    opener = _find_opener()
    base, path = f"{within}/", str(file)
    # Nearly always the one is written as the beginning of the other; a catalog asks this thousands of times.
    relative = path[len(base) :] if path.startswith(base) else os.path.relpath(path, within)
    try:
        return opener(root, relative, links=True)
    except ToolFailed as error:
        base, real = os.path.realpath(within), os.path.realpath(file)
        if error.code != "permission_denied" or not is_contained(real, base=base):
            raise _refuse(error, file, within) from error
        # An absolute link that stays inside. Opened by its real name, on which no link may stand any more.
        try:
            return opener(root, os.path.relpath(real, base), links=False)
        except ToolFailed as second:
            raise _refuse(second, file, within) from second


def _refuse(error: ToolFailed, file: Path, within: Path) -> OSError:
    if error.code == "permission_denied":
        return PermissionError(errno.EXDEV, f"it is a link out of {within.name or str(within)!r}", str(file))
    return OSError(errno.EINVAL, "it is not a regular file", str(file))


@cache
def _find_opener() -> Opener:
    chosen = choose_opener()
    return read_by_kernel if chosen is open_by_kernel else chosen


def _read(descriptor: int, most: int) -> bytes:
    """Like `open().read(most)`, at half the cost: a catalog reads thousands of small files."""
    data = os.read(descriptor, min(most, _FIRST_READ))
    while len(data) >= _FIRST_READ and len(data) < most and (more := os.read(descriptor, most - len(data))):
        data += more
    return data
