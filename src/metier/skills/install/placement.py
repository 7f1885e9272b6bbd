"""Applies registry changes to the skill folders, so that a crash leaves either the old skill or the new one.

A change replaces `registry.json`, which then contains the new state and the pending work on the folder. The folder
follows with one rename. After a kill the next process that takes the lock completes the change.
"""

import ctypes
import os
import secrets
import shutil
import stat
import sys
from collections.abc import Generator, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from filelock import BaseFileLock, FileLock, Timeout
from msgspec import Struct

from metier.definitions.files.whole_file import sync_folder
from metier.definitions.problems import Problem
from metier.errors import SkillError, SkillRejected
from metier.skills.install.installed import (
    PendingChange,
    Registry,
    RegistryEntry,
    SkillHome,
    load_registry,
    lock_registry,
    save_registry,
)
from metier.skills.layout import MEGABYTE, MORE_FILES, InstallLimits, check_paths
from metier.skills.skill_trust import digest_tree

_BY_PRODUCTS = ("__pycache__", ".DS_Store")

_AT_FDCWD = -100
# RENAME_EXCHANGE on Linux and RENAME_SWAP on macOS have the same value.
_EXCHANGE = 2
_READER_SECONDS = 5.0


class _LocalFile(Struct, frozen=True, kw_only=True):
    path: Path
    name: str
    size: int
    is_executable: bool


# Each process locks its staging folder. If the lock is free, the process is dead and the folder is deleted.
@contextmanager
def open_staging(home: SkillHome) -> Generator[Path]:
    """Create a temporary folder that is always removed at the end."""
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
        # Last, so that no sweep of another process takes the half-removed folder.
        lock.release()


def sweep_staging(home: SkillHome) -> None:
    """Delete staging folders of killed processes.

    The caller holds the registry's lock, so that no process creates a folder during the sweep.
    """
    with suppress(FileNotFoundError):
        for path in sorted(home.staging.iterdir()):
            folder = path.with_suffix("") if path.suffix == ".lock" else path
            lock = _owner_lock(folder)
            try:
                lock.acquire()
            except Timeout:
                continue
            shutil.rmtree(folder, ignore_errors=True)
            _lock_file(folder).unlink(missing_ok=True)
            lock.release()


def check_free_disk(home: SkillHome, needed: int, *, limits: InstallLimits) -> str:
    """Return a warning if the disk is nearly full. Raises `SkillError` if there is not enough space."""
    free = shutil.disk_usage(home.root).free
    if free - needed < limits.min_free_bytes:
        wanted = (needed + limits.min_free_bytes) // MEGABYTE + 1
        raise SkillError(
            f"The disk has {free // MEGABYTE} MB free, but {wanted} MB are needed", hint="Free some space first"
        )
    if free < limits.warn_free_bytes:
        return f"The disk has only {free // MEGABYTE} MB free"
    return ""


def copy_folder(source: Path, target: Path, *, limits: InstallLimits) -> None:
    """Copy the regular files of a local skill after checking every name, type and size.

    `.git` and Python's caches are not copied.
    """
    try:
        files = _list_local(source, limits)
        for file in files:
            _copy_file(file, target / file.name)
    except OSError as error:
        raise SkillError(f"Cannot copy {str(source)!r}: {error.strerror}") from error


def sync_tree(folder: Path) -> None:
    # The names too: the registry is replaced durably, and must not name a tree that a power cut left incomplete.
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
            # Bytecode would be part of the trusted bytes, and Python writes it again on the next run.
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
                raise SkillRejected(f"{name!r} is {kind}", hint="A package may only contain regular files")


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


def _owner_lock(folder: Path) -> BaseFileLock:
    return FileLock(_lock_file(folder), timeout=0, fallback_to_soft=False)


@contextmanager
def open_registry(home: SkillHome) -> Generator[Registry]:
    """Lock and open the registry, complete interrupted changes, and delete leftovers of killed processes."""
    with lock_registry(home):
        registry = _settle_all(home, load_registry(home))
        sweep_staging(home)
        _sweep_store(home, registry)
        yield registry


def read_registry(home: SkillHome) -> Registry:
    """Read the registry. It is locked only to complete an interrupted change."""
    registry = load_registry(home)
    if not registry.pending:
        return registry
    try:
        with lock_registry(home, wait_seconds=_READER_SECONDS):
            return _settle_all(home, load_registry(home))
    except (SkillError, PermissionError):
        # Another process holds the lock, or the folder is read-only. Skills with pending changes count as modified.
        return registry


def find_registry(home: SkillHome) -> tuple[Registry, Problem | None]:
    """Read the registry. If it is unusable, return an empty one with a problem."""
    try:
        return read_registry(home), None
    except SkillError as error:
        return Registry(), Problem(
            severity="error",
            code="registry_unusable",
            message=f"Installed skills are not loaded: {error.message}",
            file=str(home.registry_file),
            hint=error.hint,
        )


def place(home: SkillHome, registry: Registry, entry: RegistryEntry, *, staged: Path) -> None:
    """Replace a skill by a staged tree. The caller holds the lock.

    If the folder cannot be moved, the registry is restored.
    """
    stored = home.stored(entry.name_canonical, entry.tree)
    home.store.mkdir(exist_ok=True)
    # A killed attempt may have left the same tree here.
    _discard(stored)
    staged.rename(stored)
    # Before the registry refers to the tree: otherwise a power cut could lose the tree and keep the reference.
    sync_folder(home.store)
    changed = registry.with_entry(entry, PendingChange(kind="place", tree=entry.tree))
    _commit(home, before=registry, changed=changed, canonical=entry.name_canonical)


def displace(home: SkillHome, registry: Registry, canonical: str) -> None:
    """Remove a skill from the registry and from disk. The caller holds the lock."""
    try:
        tree = digest_tree(home.visible(canonical)).tree
    except SkillError:
        tree = ""
    changed = registry.without(canonical, PendingChange(kind="remove", tree=tree))
    _commit(home, before=registry, changed=changed, canonical=canonical)


def _commit(home: SkillHome, *, before: Registry, changed: Registry, canonical: str) -> None:
    # The registry first: if the process is killed here, the next one reads the pending change and completes it.
    save_registry(home, changed)
    try:
        _settle(home, canonical, changed.pending[canonical])
    except OSError as error:
        save_registry(home, before)
        folder = str(home.visible(canonical))
        raise SkillError(
            f"Folder {folder!r} cannot be replaced: {error.strerror}", hint="Nothing was changed"
        ) from error
    save_registry(home, changed.settled(canonical))
    _sweep_store(home, changed.settled(canonical))


def _settle_all(home: SkillHome, registry: Registry) -> Registry:
    for canonical, change in registry.pending.items():
        try:
            _settle(home, canonical, change)
        except OSError as error:
            folder = str(home.visible(canonical))
            raise SkillError(f"Folder {folder!r} cannot be replaced: {error.strerror}") from error
        registry = registry.settled(canonical)
        save_registry(home, registry)
    return registry


def _settle(home: SkillHome, canonical: str, change: PendingChange) -> None:
    visible = home.visible(canonical)
    match change.kind:
        case "place":
            stored = home.stored(canonical, change.tree)
            # After the exchange the old tree has this name, so only its digest identifies it.
            if _has_tree(stored, change.tree):
                _swap(stored, visible, spare=_spare(home, canonical))
        case "remove":
            if visible.is_symlink() or (visible.exists() and (not change.tree or _has_tree(visible, change.tree))):
                home.store.mkdir(exist_ok=True)
                visible.rename(_spare(home, canonical))
    # Before the registry drops the pending change: a power cut could undo the rename, and no process would repeat it.
    sync_folder(home.root)


def _swap(stored: Path, visible: Path, *, spare: Path) -> None:
    if not os.path.lexists(visible):
        stored.rename(visible)
        return
    # Without this, a reader could come between the two renames and find no skill.
    if _exchange(stored, visible):
        return
    visible.rename(spare)
    try:
        stored.rename(visible)
    except OSError:
        spare.rename(visible)
        raise


def _exchange(first: Path, second: Path) -> bool:
    """Swap two folders atomically if the system supports it, so that the visible name always exists."""
    if os.name != "posix":
        return False
    library = ctypes.CDLL(None)
    a, b = os.fsencode(first), os.fsencode(second)
    if sys.platform == "darwin" and hasattr(library, "renamex_np"):
        return library.renamex_np(a, b, _EXCHANGE) == 0
    if hasattr(library, "renameat2"):
        # Fails on file systems without support; the caller then renames twice.
        return library.renameat2(_AT_FDCWD, a, _AT_FDCWD, b, _EXCHANGE) == 0
    return False


def _has_tree(folder: Path, tree: str) -> bool:
    try:
        return digest_tree(folder).tree == tree
    except SkillError:
        return False


def _spare(home: SkillHome, canonical: str) -> Path:
    return home.store / f"{canonical}@old-{secrets.token_hex(8)}"


def _sweep_store(home: SkillHome, registry: Registry) -> None:
    needed = {home.stored(name, change.tree).name for name, change in registry.pending.items()}
    with suppress(FileNotFoundError):
        for path in sorted(home.store.iterdir()):
            if path.name not in needed:
                _discard(path)


def _discard(path: Path) -> None:
    """Delete a folder that may exist. If that fails, a later sweep deletes it."""
    if path.is_symlink() or path.is_file():
        path.unlink(missing_ok=True)
    else:
        shutil.rmtree(path, ignore_errors=True)
