"""Opens files below a folder by descriptor, so that no path or link can escape the folder, even in a race.

There are two equivalent implementations: the kernel resolves the path (`openat2`), or we walk the path and open one
folder at a time. The result is a regular file or a folder, open for reading, with its real path. Definitions, context
files, policies and skill files are all opened here.
"""

import ctypes
import errno
import os
import stat
import struct
import sys
from collections import deque
from collections.abc import Callable
from contextlib import ExitStack
from functools import cache
from pathlib import Path
from typing import Protocol, Self

from msgspec import Struct

from metier.definitions.files.quarantine import is_unsettled, read_records
from metier.errors import ToolFailed

_OPENAT2 = 437
"""System call number, the same on every architecture that Python supports except Alpha."""
# Magic links are those in /proc, which can lead out of a folder without containing a path.
_NO_MAGIC_LINKS, _NO_LINKS, _BENEATH = 0x02, 0x04, 0x08
_HOW = struct.Struct("=QQQ")
"""`struct open_how`: flags, mode, resolve."""
_DESCRIPTORS = "/proc/self/fd"
_TRIES = 64
"""The kernel returns `EAGAIN` while another process renames folders of the path."""
# The kernel's own limit for one path.
_MAX_LINKS = 40

# O_NONBLOCK: opening a pipe without a writer would block. O_NOCTTY: a terminal must not become the controlling one.
READ_FILE = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY
READ_FOLDER = os.O_RDONLY | os.O_CLOEXEC | os.O_DIRECTORY

_FIRST_READ = 64 * 1024


class Opened(Struct, frozen=True):
    """An open regular file or folder. The caller closes it."""

    descriptor: int
    path: str
    """Real path relative to the base folder; empty for the base folder itself."""
    status: os.stat_result

    @property
    def is_folder(self) -> bool:
        return stat.S_ISDIR(self.status.st_mode)


class Opener(Protocol):
    def __call__(self, root: int, path: str, *, links: bool) -> Opened:
        """Open a path. Raises `ToolFailed` if it leads out or is neither a file nor a folder, else `OSError`."""
        ...


def choose_opener() -> Opener:
    """Return the `openat2` opener if that system call works here."""
    return open_by_kernel if _kernel_resolves() else open_by_walking


def open_by_kernel(root: int, path: str, *, links: bool) -> Opened:
    """Resolve a path with one `openat2`, without opening the file itself, then open that same file."""
    resolve = _BENEATH | _NO_MAGIC_LINKS | (0 if links else _NO_LINKS)
    try:
        found = _openat2(root, path or ".", resolve)
    except OSError as error:
        raise _translate(error, path, links=links) from error
    try:
        status = os.fstat(found)
        _check_kind(status, path)
        flags = READ_FOLDER if stat.S_ISDIR(status.st_mode) else READ_FILE
        real = _path_between(root, found, path)
        # By the descriptor and not by the name, which may mean another file by now.
        return Opened(os.open(f"{_DESCRIPTORS}/{found}", flags), real, status)
    finally:
        os.close(found)


def read_by_kernel(root: int, path: str, *, links: bool) -> Opened:
    """Read a file like `open_by_kernel`, in one call and without its real path."""
    resolve = _BENEATH | _NO_MAGIC_LINKS | (0 if links else _NO_LINKS)
    try:
        found = _openat2(root, path or ".", resolve, flags=READ_FILE)
    except OSError as error:
        if error.errno == errno.ENXIO:  # a socket, or a device without its driver
            raise ToolFailed(f"Path {path!r} is neither a file nor a folder", code="not_a_file") from error
        raise _translate(error, path, links=links) from error
    status = os.fstat(found)
    try:
        _check_kind(status, path)
    except ToolFailed:
        os.close(found)
        raise
    return Opened(found, path, status)


def open_by_walking(root: int, path: str, *, links: bool) -> Opened:
    """Open each folder of the path without following links. All stay open, so that `..` returns to the previous one."""
    todo = deque(path.split("/"))
    followed = 0
    with _Trail(root) as trail:
        while todo:
            name = todo.popleft()
            if name == "..":
                trail.step_back(path)
            elif name not in {"", "."}:
                status = os.stat(name, dir_fd=trail.here, follow_symlinks=False)
                if stat.S_ISLNK(status.st_mode):
                    followed += 1
                    todo.extendleft(reversed(_follow(name, trail.here, path, links=links and followed <= _MAX_LINKS)))
                else:
                    trail.enter(name, status, path)
        return trail.finish()


class _Trail:
    """The open folders of a path."""

    def __init__(self, root: int) -> None:
        self._open: list[int] = [os.dup(root)]
        self._names: list[str] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for descriptor in self._open:
            os.close(descriptor)

    @property
    def here(self) -> int:
        return self._open[-1]

    def step_back(self, path: str) -> None:
        if not self._names:
            raise leads_out(path)
        os.close(self._open.pop())
        self._names.pop()

    def enter(self, name: str, status: os.stat_result, path: str) -> None:
        _check_kind(status, path)
        flags = READ_FOLDER if stat.S_ISDIR(status.st_mode) else READ_FILE
        try:
            descriptor = os.open(name, flags | os.O_NOFOLLOW, dir_fd=self.here)
        except OSError as error:
            if error.errno == errno.ELOOP:
                raise _changed(path) from error
            raise
        self._open.append(descriptor)
        self._names.append(name)
        # Checked again: another process may have replaced the file between `stat` and `open`.
        _check_kind(os.fstat(descriptor), path)

    def finish(self) -> Opened:
        # Duplicated, because the trail closes its own descriptors.
        return Opened(os.dup(self.here), "/".join(self._names), os.fstat(self.here))


def _follow(name: str, folder: int, path: str, *, links: bool) -> list[str]:
    if not links:
        raise _is_link(path)
    target = os.readlink(name, dir_fd=folder)
    # Like the kernel's RESOLVE_BENEATH, this also rejects an absolute link that leads back inside.
    if target.startswith("/"):
        raise leads_out(path)
    return target.split("/")


def leads_out(path: str) -> ToolFailed:
    return ToolFailed(f"Path {path!r} leads out of the folders that are open to you", code="permission_denied")


def _is_link(path: str) -> ToolFailed:
    return ToolFailed(f"Path {path!r} goes through a symbolic link, which is not followed", code="permission_denied")


def _changed(path: str) -> ToolFailed:
    return ToolFailed(f"Path {path!r} was changed while it was opened", hint="Try again", code="conflict")


def _check_kind(status: os.stat_result, path: str) -> None:
    if not (stat.S_ISREG(status.st_mode) or stat.S_ISDIR(status.st_mode)):
        raise ToolFailed(
            f"Path {path!r} is neither a file nor a folder but {_kind_of(status.st_mode)}", code="not_a_file"
        )


def _kind_of(mode: int) -> str:
    kinds: tuple[tuple[Callable[[int], bool], str], ...] = (
        (stat.S_ISFIFO, "a pipe"),
        (stat.S_ISSOCK, "a socket"),
        (stat.S_ISCHR, "a device"),
        (stat.S_ISBLK, "a device"),
    )
    return next((word for is_kind, word in kinds if is_kind(mode)), "something else")


def _translate(error: OSError, path: str, *, links: bool) -> Exception:
    # How RESOLVE_BENEATH reports a path that leaves the folder.
    if error.errno == errno.EXDEV:
        return leads_out(path)
    if error.errno == errno.ELOOP and not links:
        return _is_link(path)
    if error.errno == errno.EAGAIN:
        return _changed(path)
    return error


def _path_between(root: int, found: int, path: str) -> str:
    """Return the kernel's path of an open file, relative to the open root."""
    # The kernel appends ` (deleted)` to the path of a removed file.
    if os.fstat(found).st_nlink == 0:
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
    base, real = (str(Path(f"{_DESCRIPTORS}/{descriptor}").readlink()) for descriptor in (root, found))
    if real == base:
        return ""
    if not real.startswith(base.rstrip("/") + "/"):
        raise leads_out(path)
    return real[len(base.rstrip("/")) + 1 :]


def _openat2(folder: int, path: str, resolve: int, *, flags: int | None = None) -> int:
    """Resolve a path. Without flags the descriptor only refers to the file, so that a pipe or device has no effect."""
    library = _load_library()
    how = _HOW.pack(os.O_PATH | os.O_CLOEXEC if flags is None else flags, 0, resolve)
    for _ in range(_TRIES):
        # By number, because most C libraries have no function for this call.
        result = int(library.syscall(ctypes.c_long(_OPENAT2), ctypes.c_int(folder), os.fsencode(path), how, len(how)))
        if result >= 0:
            return result
        if ctypes.get_errno() != errno.EAGAIN:
            break
    number = ctypes.get_errno()
    raise OSError(number, os.strerror(number), path)


@cache
def _load_library() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)


@cache
def _kernel_resolves() -> bool:
    """Test `openat2` once, on the root folder: a step up must fail with its specific error."""
    if sys.platform != "linux" or not Path(_DESCRIPTORS).is_dir():
        return False
    with ExitStack() as opened:
        folder = os.open("/", READ_FOLDER)
        opened.callback(os.close, folder)
        try:
            os.close(_openat2(folder, ".", _BENEATH | _NO_MAGIC_LINKS))
            os.close(_openat2(folder, "..", _BENEATH | _NO_MAGIC_LINKS))
        except OSError as error:
            return error.errno == errno.EXDEV
    return False


def read_contained(file: Path, *, within: Path, limit: int) -> bytes:
    """Read at most `limit + 1` bytes of a regular file below `within`, following links.

    Raises `OSError` with a reason in `strerror`, also for a link that leads out and for a pipe. A protected path that
    appeared while a confined program was running counts as missing.
    """
    before, records = read_records()
    data = _read_file(file, within=within, limit=limit)
    after, more = read_records()
    if before != after:
        # A program started or ended meanwhile: the file may have been moved to quarantine since it was read.
        return read_contained(file, within=within, limit=limit)
    if any(record.find(str(file)) for record in (*records, *more)):
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(file))
    return data


def _read_file(file: Path, *, within: Path, limit: int) -> bytes:
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
    """Return True if the path is missing, or appeared while a confined program was running (see `quarantine`).

    A folder without search permission and a link cycle return False: treating them as absent would skip a rule file.
    The caller then reads the file and reports the error.
    """
    try:
        os.lstat(path)
    except (FileNotFoundError, NotADirectoryError, ValueError):
        return True
    except OSError:
        return False
    return is_unsettled(str(path))


def is_contained(path: str, *, base: str) -> bool:
    """Return True if the real path of `path` is in `base`, which must be a real path."""
    real = os.path.realpath(path)
    return real == base or real.startswith(base.rstrip("/") + "/")


def _open(root: int, file: Path, within: Path) -> Opened:
    opener = _get_opener()
    base, path = f"{within}/", str(file)
    # Nearly always one path is a prefix of the other. A catalog checks thousands of paths, so avoid resolving them.
    relative = path[len(base) :] if path.startswith(base) else os.path.relpath(path, within)
    try:
        return opener(root, relative, links=True)
    except ToolFailed as error:
        base, real = os.path.realpath(within), os.path.realpath(file)
        if error.code != "permission_denied" or not is_contained(real, base=base):
            raise _refuse(error, file, within) from error
        # An absolute link that stays inside: opened by its real path, which must not contain a link.
        try:
            return opener(root, os.path.relpath(real, base), links=False)
        except ToolFailed as second:
            raise _refuse(second, file, within) from second


def _refuse(error: ToolFailed, file: Path, within: Path) -> OSError:
    if error.code == "permission_denied":
        return PermissionError(errno.EXDEV, f"it is a link out of {within.name or str(within)!r}", str(file))
    return OSError(errno.EINVAL, "it is not a regular file", str(file))


@cache
def _get_opener() -> Opener:
    chosen = choose_opener()
    return read_by_kernel if chosen is open_by_kernel else chosen


def _read(descriptor: int, most: int) -> bytes:
    """Read like `open().read(most)`, at half the cost, because a catalog has thousands of small files."""
    # A regular file returns fewer bytes than asked for only at its end.
    data = os.read(descriptor, min(most, _FIRST_READ))
    while len(data) >= _FIRST_READ and len(data) < most and (more := os.read(descriptor, most - len(data))):
        data += more
    return data
