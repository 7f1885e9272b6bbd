"""Trust in a skill: the digest of its files, whether its code may run, and the private copies that are run.

If code ran from the checked folder, its files could be swapped between the check and the start. So code that is trusted
by its bytes is copied to `~/.agent/code/<hash>`, then hashed, then executed. No sandbox allows writing there. Skills
that are trusted by location run in place.
"""

import dataclasses
import hashlib
import os
import shutil
import stat
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from types import MappingProxyType

from msgspec import Struct
from msgspec.structs import replace

from metier.errors import SkillError, SkillNotTrusted, SkillRejected
from metier.skills.package import SkillPackage

# Part of every digest: a change of the format must not make old trust count by accident.
_FORMAT = b"metier-tree-1\n"
_CHUNK = 1 << 20

TRUSTED_BY_LOCATION = ("bundled", "workspace", "directory")
"""Sources that are trusted by location: bundled with Metier, or part of the user's project."""
TRUSTED_UNREAD = frozenset({"workspace", "directory"})
"""Sources whose skills are trusted without a review of their bytes."""


class TreeDigest(Struct, frozen=True, kw_only=True):
    """Digest of a folder. An equal `tree` means the same paths, bytes and executable bits."""

    tree: str
    """SHA-256 over all files, 64 hexadecimal digits."""
    files: dict[str, str]
    """SHA-256 by relative POSIX path, in the order of the paths."""
    bytes: int


class _File(Struct, frozen=True, kw_only=True):
    path: Path
    name: str
    is_executable: bool


# The digest includes compiled files in `__pycache__`, because Python would load an unreviewed one instead of the
# reviewed source. So programs that run skill code must not write bytecode into the folder.
def digest_tree(folder: Path, *, instead: Mapping[str, str] = MappingProxyType({})) -> TreeDigest:
    """Fingerprint a folder. `instead` overrides the SHA-256 of files.

    Raises `SkillRejected` for anything that is not a plain file or folder, `SkillError` if it cannot be read.
    """
    tree = hashlib.sha256(_FORMAT)
    files: dict[str, str] = {}
    total = 0
    try:
        # Sorted by bytes: each file system lists its entries in another order.
        for file in sorted(_walk(folder), key=lambda file: file.name.encode()):
            content, size = _hash_file(file.path)
            content = instead.get(file.name, content)
            files[file.name] = content
            total += size
            mode = b"x" if file.is_executable else b"-"
            # A name cannot contain NUL, so no name can imitate the fields after it.
            tree.update(b"%s\0%s\0%s\n" % (file.name.encode(), mode, content.encode()))
    except OSError as error:
        raise SkillError(f"Cannot read {str(folder)!r}: {error.strerror}") from error
    return TreeDigest(tree=tree.hexdigest(), files=files, bytes=total)


def digest_files(folder: Path, *, instead: Mapping[str, str] = MappingProxyType({})) -> str:
    """Return a digest for a folder with links. It covers the targets of links and their content.

    Raises `SkillError` if it cannot be read.
    """
    try:
        return digest_tree(folder, instead=instead).tree
    except SkillRejected:
        pass
    digest = hashlib.sha256(_FORMAT)
    for parent, folders, names in os.walk(folder):
        folders.sort()
        for path in (Path(parent) / name for name in sorted((*names, *folders))):
            target = path.readlink() if path.is_symlink() else ""
            content = _hash_file(path.resolve())[0] if path.is_file() else "none"
            content = instead.get(path.relative_to(folder).as_posix(), content)
            digest.update(os.fsencode(f"{path.relative_to(folder)}\0{target}\0{content}\n"))
    return digest.hexdigest()


def _walk(folder: Path, prefix: str = "") -> Iterator[_File]:
    with os.scandir(folder) as entries:
        for entry in entries:
            name = prefix + _checked(entry.name, prefix)
            mode = entry.stat(follow_symlinks=False).st_mode
            if stat.S_ISDIR(mode):
                yield from _walk(Path(entry.path), f"{name}/")
            elif stat.S_ISREG(mode):
                yield _File(path=Path(entry.path), name=name, is_executable=_is_executable(mode))
            else:
                kind = "a symbolic link" if stat.S_ISLNK(mode) else "neither a file nor a folder"
                raise SkillRejected(f"{name!r} is {kind}", hint="Replace it with a copy of the file")


def _checked(name: str, prefix: str) -> str:
    try:
        name.encode()
    except UnicodeEncodeError as error:
        raise SkillRejected(f"A file name in {prefix or '.'!r} is not UTF-8", hint="Rename the file") from error
    return name


def _is_executable(mode: int) -> bool:
    # Windows has no executable bit; Python derives one from the file's extension.
    return os.name != "nt" and bool(mode & stat.S_IXUSR)


def _hash_file(path: Path) -> tuple[str, int]:
    content = hashlib.sha256()
    size = 0
    # O_NOFOLLOW: if a link replaced the file after the walk, opening it must fail instead of leaving the folder.
    descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_BINARY", 0))
    with os.fdopen(descriptor, "rb") as stream:
        while chunk := stream.read(_CHUNK):
            content.update(chunk)
            size += len(chunk)
    return content.hexdigest(), size


def is_trusted(package: SkillPackage) -> bool:
    """Return True if a skill is trusted. Reads the whole folder of an installed skill.

    Call it when a skill is loaded, and again right before its code is executed.
    """
    if package.is_withheld:
        return False
    if package.source in TRUSTED_BY_LOCATION:
        return True
    if package.trusted_digest is None:
        return False
    try:
        return digest_tree(package.folder).tree == package.trusted_digest
    except SkillError:
        # Every folder that could be trusted was readable and had no links.
        return False


def check_trusted(package: SkillPackage) -> None:
    """Raise `SkillNotTrusted` if the skill was never trusted or its bytes changed since."""
    if is_trusted(package):
        return
    name = package.definition.name
    if package.is_withheld:
        raise SkillNotTrusted(
            f"Skill {name!r} belongs to this folder, which came from elsewhere and which you have not trusted",
            hint="Review the files of the folder, then run `agent trust`",
        )
    if package.trusted_digest is None:
        raise SkillNotTrusted(
            f"Skill {name!r} is not trusted",
            hint=f"Review it, then run `agent skill trust {name}`",
        )
    raise refuse_changed(package)


def refuse_changed(package: SkillPackage) -> SkillNotTrusted:
    name = package.definition.name
    return SkillNotTrusted(
        f"Skill {name!r} changed since it was trusted",
        hint=f"`agent skill verify {name}` lists the changes; review them, then run `agent skill trust {name}`",
    )


CODE_FOLDER = ".agent/code"
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
        folder = _get_copy(package, package.trusted_digest, store=home / CODE_FOLDER)
    except OSError as error:
        hint = "Make it writable: trusted code runs from there"
        raise SkillError(
            f"Folder {str(home / CODE_FOLDER)!r} cannot hold a copy: {error.strerror}", hint=hint
        ) from error
    definition = dataclasses.replace(package.definition, folder=folder, file=folder / package.definition.file.name)
    return replace(package, folder=folder, definition=definition)


def _get_copy(package: SkillPackage, digest: str, *, store: Path) -> Path:
    store.mkdir(mode=0o700, parents=True, exist_ok=True)
    target = store / digest
    if _holds(target, digest):
        os.utime(target)  # for `_prune`, which deletes copies that were not used for a long time
        return target
    _prune(store)
    # In the store: a rename is atomic only within one file system.
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
        # Not synced to disk: every use checks the hash, and a copy that a power cut damaged is made again.
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
