"""Make the visible folders follow the registry, so that a crash at any moment leaves the old skill or the new one.

A change is one replacement of `registry.json`: it names the new state, and what the folder has yet to do. Then the
folder follows in one rename. Who is killed in between is completed by the next process that takes the lock.
"""

import ctypes
import os
import secrets
import shutil
import sys
from collections.abc import Generator
from contextlib import contextmanager, suppress
from pathlib import Path

from metier.definitions.files.whole_file import sync_folder
from metier.errors import SkillError
from metier.skills.install.registry import (
    PendingChange,
    Registry,
    RegistryEntry,
    SkillHome,
    load_registry,
    lock_registry,
    save_registry,
)
from metier.skills.install.staging import sweep_staging
from metier.skills.trust.digest import digest_tree

_AT_FDCWD = -100
_EXCHANGE = 2
_READER_SECONDS = 5.0


@contextmanager
def open_registry(home: SkillHome) -> Generator[Registry]:
    """The registry under its lock, with every interrupted change completed and stale work removed."""
    with lock_registry(home):
        registry = _settle_all(home, load_registry(home))
        sweep_staging(home)
        _sweep_store(home, registry)
        yield registry


def read_registry(home: SkillHome) -> Registry:
    """For readers: takes the lock only to complete what a killed process left."""
    registry = load_registry(home)
    if not registry.pending:
        return registry
    try:
        with lock_registry(home, wait_seconds=_READER_SECONDS):
            return _settle_all(home, load_registry(home))
    except (SkillError, PermissionError):
        # Another process holds the lock, or this home is not ours to write: what is not in place yet counts as changed.
        return registry


def place(home: SkillHome, registry: Registry, entry: RegistryEntry, *, staged: Path) -> None:
    """Put a staged tree in place of whatever the skill was. The caller holds the lock.

    When the folder cannot be moved, the registry is put back as it was.
    """
    stored = home.stored(entry.name_canonical, entry.tree)
    home.store.mkdir(exist_ok=True)
    _discard(stored)
    staged.rename(stored)
    sync_folder(home.store)
    changed = registry.with_entry(entry, PendingChange(kind="place", tree=entry.tree))
    _commit(home, before=registry, changed=changed, canonical=entry.name_canonical)


def displace(home: SkillHome, registry: Registry, canonical: str) -> None:
    """Take a skill out of the registry and off the disk. The caller holds the lock."""
    try:
        tree = digest_tree(home.visible(canonical)).tree
    except SkillError:
        tree = ""
    changed = registry.without(canonical, PendingChange(kind="remove", tree=tree))
    _commit(home, before=registry, changed=changed, canonical=canonical)


def _commit(home: SkillHome, *, before: Registry, changed: Registry, canonical: str) -> None:
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
            # After the exchange the old tree has this name, so the name alone does not say which of the two it is.
            if _has_tree(stored, change.tree):
                _swap(stored, visible, spare=_spare(home, canonical))
        case "remove":
            if visible.is_symlink() or (visible.exists() and (not change.tree or _has_tree(visible, change.tree))):
                home.store.mkdir(exist_ok=True)
                visible.rename(_spare(home, canonical))
    sync_folder(home.root)


def _swap(stored: Path, visible: Path, *, spare: Path) -> None:
    if not os.path.lexists(visible):
        stored.rename(visible)
        return
    if _exchange(stored, visible):
        return
    visible.rename(spare)
    try:
        stored.rename(visible)
    except OSError:
        spare.rename(visible)
        raise


def _exchange(first: Path, second: Path) -> bool:
    """Swap two folders in one step, where the system can; there is no moment in which the second name is missing."""
    if os.name != "posix":
        return False
    library = ctypes.CDLL(None)
    a, b = os.fsencode(first), os.fsencode(second)
    if sys.platform == "darwin" and hasattr(library, "renamex_np"):
        return library.renamex_np(a, b, _EXCHANGE) == 0
    if hasattr(library, "renameat2"):
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
    """Delete what may be there. What cannot be deleted now is swept later; it does no harm until then."""
    if path.is_symlink() or path.is_file():
        path.unlink(missing_ok=True)
    else:
        shutil.rmtree(path, ignore_errors=True)
