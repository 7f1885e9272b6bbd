"""The state of a workspace path (file, link or missing), and how to restore it. Follows no links."""

import hashlib
import os
import stat
from contextlib import suppress
from pathlib import Path
from typing import Literal

from metier.errors import ToolFailed
from metier.values import StoredValue

MAX_BYTES = 16 * 1024 * 1024
"""The content of a larger file is not stored, so it can't be restored."""
_FOLDERS = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_MODE_BITS = 0o777
"""Special bits such as setuid are not restored."""


class FileState(StoredValue, frozen=True, kw_only=True):
    """The state of a file or a link; None instead of a state means that the path is missing."""

    kind: Literal["file", "link", "other"] = "file"
    sha256: str = ""
    """Hash of the content, or of a link's target."""
    mode: int = 0o644
    is_kept: bool = True
    """The content is stored under `sha256`."""

    def is_same(self, other: "FileState | None") -> bool:
        return other is not None and (self.kind, self.sha256, self.mode) == (other.kind, other.sha256, other.mode)


class FileSnapshot(StoredValue, frozen=True, kw_only=True):
    state: FileState
    data: bytes = b""


def are_same(one: FileState | None, other: FileState | None) -> bool:
    return other is None if one is None else one.is_same(other)


def build_state(kind: Literal["file", "link"], data: bytes, *, mode: int) -> FileState:
    return FileState(kind=kind, sha256=hashlib.sha256(data).hexdigest(), mode=mode & _MODE_BITS)


def read_state(workspace: Path, path: str) -> FileSnapshot | None:
    """Return the current state; None if missing or a folder, whose files have paths of their own. Raises `OSError`."""
    try:
        with _Folder(workspace, path, create=False) as (folder, name):
            return _look(folder, name)
    except (FileNotFoundError, NotADirectoryError):
        return None


def restore(workspace: Path, path: str, *, state: FileState | None, data: bytes) -> None:
    """Restore the state of a path atomically. Raises `OSError`, also if a folder on the way is a link."""
    if state is None:
        _remove(workspace, path)
        return
    with _Folder(workspace, path, create=True) as (folder, name):
        temporary = f".metier-undo-{hashlib.sha256(path.encode('utf-8', 'surrogatepass')).hexdigest()[:16]}.tmp"
        with suppress(FileNotFoundError):  # left over from a killed undo
            os.unlink(temporary, dir_fd=folder)
        if state.kind == "link":
            os.symlink(os.fsdecode(data), temporary, dir_fd=folder)
        else:
            _write(folder, temporary, data, mode=state.mode)
        os.rename(temporary, name, src_dir_fd=folder, dst_dir_fd=folder)
        # The rename survives a power cut only when its folder is on disk.
        os.fsync(folder)


def _look(folder: int, name: str) -> FileSnapshot | None:
    status = os.stat(name, dir_fd=folder, follow_symlinks=False)
    if stat.S_ISDIR(status.st_mode):
        return None
    if stat.S_ISLNK(status.st_mode):
        data = os.fsencode(os.readlink(name, dir_fd=folder))
        return FileSnapshot(state=build_state("link", data, mode=0o777), data=data)
    if not stat.S_ISREG(status.st_mode):
        return FileSnapshot(state=FileState(kind="other", is_kept=False))
    mode = stat.S_IMODE(status.st_mode) & _MODE_BITS
    if status.st_size > MAX_BYTES:
        # Size and time instead of a hash, because reading a large file at each step would take too long.
        marker = f"{status.st_size} {status.st_mtime_ns}"
        return FileSnapshot(state=FileState(sha256=f"large {marker}", mode=mode, is_kept=False))
    # O_NONBLOCK: a pipe that has just replaced the file would wait for a writer.
    descriptor = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=folder)
    with os.fdopen(descriptor, "rb") as file:
        data = file.read(MAX_BYTES + 1)  # bounded again: the file may have grown
    return FileSnapshot(state=build_state("file", data, mode=mode), data=data)


def _write(folder: int, name: str, data: bytes, *, mode: int) -> None:
    # O_EXCL: another process may have put a link there, whose target would be overwritten.
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    descriptor = os.open(name, flags, 0o600, dir_fd=folder)
    with os.fdopen(descriptor, "wb") as file:
        file.write(data)
        file.flush()
        # By `fchmod`: the mode given to `open` would be reduced by the umask.
        os.fchmod(file.fileno(), mode & _MODE_BITS)
        os.fsync(file.fileno())


def _remove(workspace: Path, path: str) -> None:
    """Remove a file and the folders that become empty: the run that created the file created them too."""
    try:
        with _Folder(workspace, path, create=False) as (folder, name):
            os.unlink(name, dir_fd=folder)
    except (FileNotFoundError, NotADirectoryError):
        return
    parent = Path(path).parent
    while parent != Path():
        try:
            with _Folder(workspace, str(parent), create=False) as (folder, name):
                # It fails for a folder with other files, which ends the loop.
                os.rmdir(name, dir_fd=folder)
        except OSError:
            return
        parent = parent.parent


class _Folder:
    """The open folder of a workspace path, opened part by part so that no link is followed."""

    def __init__(self, workspace: Path, path: str, *, create: bool) -> None:
        parts = Path(path).parts
        if not parts or Path(path).is_absolute() or ".." in parts:
            raise ToolFailed(f"Path {path!r} is not in the workspace", code="permission_denied")
        self._workspace, self._parts, self._create = workspace, parts, create
        self._descriptor = -1

    def __enter__(self) -> tuple[int, str]:
        # One part at a time, because O_NOFOLLOW applies only to the last part of a path.
        self._descriptor = os.open(self._workspace, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            for part in self._parts[:-1]:
                if self._create:
                    with suppress(FileExistsError):
                        os.mkdir(part, dir_fd=self._descriptor)
                following = os.open(part, _FOLDERS, dir_fd=self._descriptor)
                os.close(self._descriptor)
                self._descriptor = following
        except BaseException:
            os.close(self._descriptor)
            raise
        return self._descriptor, self._parts[-1]

    def __exit__(self, *_: object) -> None:
        os.close(self._descriptor)
