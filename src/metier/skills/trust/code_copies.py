"""Private copies of trusted skills by tree hash, which ensure that exactly the hashed bytes run.

If code ran from the checked folder, its files could be swapped between the check and the start. So code that is
trusted by its bytes is copied to `~/.agent/code/<hash>`, then hashed, then executed. No sandbox allows writing there.
Skills that are trusted by location run in place.
"""

import dataclasses
import os
import shutil
import stat
import tempfile
import time
from contextlib import suppress
from pathlib import Path

from msgspec.structs import replace

from metier.errors import SkillError
from metier.skills.package import SkillPackage
from metier.skills.trust.judgement import TRUSTED_BY_LOCATION, check_trusted, digest_tree, refuse_changed

FOLDER = ".agent/code"
_UNUSED_SECONDS = 30 * 24 * 3600
"""Time after the last use of a copy until it can be removed. Copies are removed when another one is created."""


def take_trusted_copy(package: SkillPackage, *, home: Path) -> SkillPackage:
    """Return the package with its files in a private copy, which contains exactly the trusted bytes.

    Raises `SkillNotTrusted` if the current bytes are not trusted, `SkillError` if no copy can be made.
    """
    check_trusted(package)
    if package.trusted_digest is None or package.source in TRUSTED_BY_LOCATION:
        return package
    try:
        folder = _get_copy(package, package.trusted_digest, store=home / FOLDER)
    except OSError as error:
        hint = "Make it writable: trusted code runs from there"
        raise SkillError(f"Folder {str(home / FOLDER)!r} cannot hold a copy: {error.strerror}", hint=hint) from error
    definition = dataclasses.replace(package.definition, folder=folder, file=folder / package.definition.file.name)
    return replace(package, folder=folder, definition=definition)


def _get_copy(package: SkillPackage, digest: str, *, store: Path) -> Path:
    store.mkdir(mode=0o700, parents=True, exist_ok=True)
    target = store / digest
    if _holds(target, digest):
        os.utime(target)  # for `_prune`, which deletes copies that were not used for a long time
        return target
    _prune(store)
    aside = Path(tempfile.mkdtemp(prefix=".new-", dir=store))
    try:
        _copy(package.folder, aside / "skill")
        if not _holds(aside / "skill", digest):
            # The folder changed after it was checked.
            raise refuse_changed(package)
        if target.exists():
            # The existing copy is damaged, or another process has just created this copy.
            with suppress(OSError):
                target.rename(aside / "damaged")
        with suppress(OSError):
            (aside / "skill").rename(target)
        # Another process may have won the race for the name; its copy is as good if it has the same bytes.
        if not _holds(target, digest):
            raise refuse_changed(package)
    finally:
        shutil.rmtree(aside, ignore_errors=True)
    return target


def _holds(folder: Path, digest: str) -> bool:
    try:
        return digest_tree(folder).tree == digest
    except SkillError:
        return False


def _copy(source: Path, target: Path) -> None:
    """Copy plain files and folders. A link that replaced a file meanwhile is skipped, which changes the hash."""
    target.mkdir(mode=0o700)
    with os.scandir(source) as entries:
        for entry in entries:
            if entry.is_dir(follow_symlinks=False):
                _copy(Path(entry.path), target / entry.name)
            elif entry.is_file(follow_symlinks=False):
                _copy_file(entry.path, target / entry.name)


def _copy_file(source: str, target: Path) -> None:
    # O_NONBLOCK: a pipe that replaced the file after the listing must not block.
    flags = os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)
    with os.fdopen(os.open(source, flags), "rb") as stream, target.open("xb") as copy:
        shutil.copyfileobj(stream, copy)
        is_executable = os.fstat(stream.fileno()).st_mode & stat.S_IXUSR
    # Read-only, because a changed file would make the copy unusable for later runs.
    target.chmod(0o500 if is_executable else 0o400)


def _prune(store: Path) -> None:
    oldest = time.time() - _UNUSED_SECONDS
    for path in store.iterdir():
        with suppress(OSError):
            if path.stat().st_mtime < oldest:
                shutil.rmtree(path, ignore_errors=True)
