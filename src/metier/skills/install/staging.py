"""A private folder for work in progress, on the file system of the skills. A kill leaves nothing behind for long.

Each folder has a lock that its process holds; a folder whose lock is free has lost its process and is swept.
"""

import os
import secrets
import shutil
import stat
from collections.abc import Generator, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from metier.dataclass import dataclass
from metier.definitions.files.whole_file import sync_folder
from metier.errors import SkillError, SkillRejected
from metier.file_lock import FileLock, LockHeld
from metier.skills.install.registry import SkillHome, lock_registry
from metier.skills.layout import check_paths
from metier.skills.limits import MEGABYTE, MORE_FILES, InstallLimits

_BY_PRODUCTS = ("__pycache__", ".DS_Store")


@dataclass(frozen=True, slots=True, kw_only=True)
class _LocalFile:
    path: Path
    name: str
    size: int
    is_executable: bool


@contextmanager
def open_staging(home: SkillHome) -> Generator[Path]:
    """An empty folder of our own. It is removed at the end, whatever happens."""
    with lock_registry(home):
        folder = home.staging / secrets.token_hex(8)
        folder.mkdir(parents=True)
        lock = _owner_lock(folder)
        lock.acquire()
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        _lock_file(folder).unlink(missing_ok=True)
        lock.release()


def sweep_staging(home: SkillHome) -> None:
    """Remove what killed processes left. The caller holds the registry's lock, so no other makes a folder meanwhile."""
    with suppress(FileNotFoundError):
        for path in sorted(home.staging.iterdir()):
            folder = path.with_suffix("") if path.suffix == ".lock" else path
            lock = _owner_lock(folder)
            try:
                lock.acquire()
            except LockHeld:
                continue
            shutil.rmtree(folder, ignore_errors=True)
            _lock_file(folder).unlink(missing_ok=True)
            lock.release()


def check_free_disk(home: SkillHome, needed: int, *, limits: InstallLimits) -> str:
    """A warning where the disk is nearly full, else nothing. Raises `SkillError` where it does not fit."""
    free = shutil.disk_usage(home.root).free
    if free - needed < limits.min_free_bytes:
        wanted = (needed + limits.min_free_bytes) // MEGABYTE + 1
        raise SkillError(f"The disk has {free // MEGABYTE} MB free, {wanted} MB are needed", hint="Make room first")
    if free < limits.warn_free_bytes:
        return f"The disk has only {free // MEGABYTE} MB free"
    return ""


def copy_folder(source: Path, target: Path, *, limits: InstallLimits) -> None:
    """Copy the plain files of a local skill, after every name, kind and size was checked.

    The folder's own `.git` and what Python left behind stay where they are.
    """
    try:
        files = _list_local(source, limits)
        for file in files:
            _copy_file(file, target / file.name)
    except OSError as error:
        raise SkillError(f"Cannot copy {str(source)!r}: {error.strerror}") from error


def sync_tree(folder: Path) -> None:
    for root, _, _ in os.walk(folder):
        sync_folder(Path(root))


def _list_local(source: Path, limits: InstallLimits) -> list[_LocalFile]:
    files: list[_LocalFile] = []
    total = 0
    for file in _walk(source):
        files.append(file)
        total += file.size
        if len(files) > limits.max_files:
            raise SkillRejected(f"The package has more than {limits.max_files} files", hint=MORE_FILES)
        if file.size > limits.max_file_bytes:
            raise SkillRejected(f"{file.name!r} has {file.size} bytes, more than {limits.max_file_bytes}")
        if total > limits.max_bytes:
            raise SkillRejected(f"The package has more than {limits.max_bytes} bytes")
    check_paths(file.name for file in files)
    return files


def _walk(folder: Path, prefix: str = "") -> Iterator[_LocalFile]:
    with os.scandir(folder) as entries:
        for entry in sorted(entries, key=lambda entry: entry.name):
            name = prefix + entry.name
            if name == ".git" or entry.name in _BY_PRODUCTS or entry.name.endswith((".pyc", ".pyo")):
                continue
            details = entry.stat(follow_symlinks=False)
            if stat.S_ISDIR(details.st_mode):
                yield from _walk(Path(entry.path), f"{name}/")
            elif stat.S_ISREG(details.st_mode):
                is_executable = os.name != "nt" and bool(details.st_mode & stat.S_IXUSR)
                path = Path(entry.path)
                yield _LocalFile(path=path, name=name, size=details.st_size, is_executable=is_executable)
            else:
                kind = "a symbolic link" if stat.S_ISLNK(details.st_mode) else "neither a file nor a folder"
                raise SkillRejected(f"{name!r} is {kind}", hint="A package holds plain files only")


def _copy_file(file: _LocalFile, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    source = os.open(file.path, os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_BINARY", 0))
    with os.fdopen(source, "rb") as reader, target.open("xb") as writer:
        shutil.copyfileobj(reader, writer)
        writer.flush()
        os.fsync(writer.fileno())
    target.chmod(0o755 if file.is_executable else 0o644)


def _lock_file(folder: Path) -> Path:
    return folder.with_name(f"{folder.name}.lock")


def _owner_lock(folder: Path) -> FileLock:
    return FileLock(_lock_file(folder))
