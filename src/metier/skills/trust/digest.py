"""The fingerprint of a folder: which files, which bytes, which of them executable. Reads, never writes.

Every file counts, also what Python leaves behind in `__pycache__`: an unreviewed compiled file would be
loaded instead of the reviewed source. What runs skill code therefore must not write bytecode beside it.
"""

import hashlib
import os
import stat
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import MappingProxyType

from metier.dataclass import dataclass
from metier.errors import SkillError, SkillRejected

_FORMAT = b"metier-tree-1\n"
_CHUNK = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class TreeDigest:
    """Equal `tree` means: the same paths, the same bytes, the same executable bits."""

    tree: str
    """SHA-256 over all files, 64 hexadecimal digits."""
    files: dict[str, str]
    """Relative POSIX path to the SHA-256 of the content, in the order of the paths."""
    bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class _File:
    path: Path
    name: str
    is_executable: bool


def digest_tree(folder: Path, *, instead: Mapping[str, str] = MappingProxyType({})) -> TreeDigest:
    """Fingerprint a folder. `instead` has the SHA-256 of files that count as if they held other bytes.

    Raises `SkillRejected` for anything that is not a plain file or folder, `SkillError` where it cannot be read.
    """
    tree = hashlib.sha256(_FORMAT)
    files: dict[str, str] = {}
    total = 0
    try:
        for file in sorted(_walk(folder), key=lambda file: file.name.encode()):
            content, size = _hash_file(file.path)
            content = instead.get(file.name, content)
            files[file.name] = content
            total += size
            mode = b"x" if file.is_executable else b"-"
            tree.update(b"%s\0%s\0%s\n" % (file.name.encode(), mode, content.encode()))
    except OSError as error:
        raise SkillError(f"Cannot read {str(folder)!r}: {error.strerror}") from error
    return TreeDigest(tree=tree.hexdigest(), files=files, bytes=total)


def digest_files(folder: Path, *, instead: Mapping[str, str] = MappingProxyType({})) -> str:
    """As the `tree` of `digest_tree`, for a folder that may hold links: where one leads, and what is there, counts.

    Raises `SkillError` where it cannot be read.
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
                raise SkillRejected(f"{name!r} is {kind}", hint="Replace it by a copy of the file")


def _checked(name: str, prefix: str) -> str:
    try:
        name.encode()
    except UnicodeEncodeError as error:
        raise SkillRejected(f"A file name in {prefix or '.'!r} is not UTF-8", hint="Rename the file") from error
    return name


def _is_executable(mode: int) -> bool:
    # Windows has no such bit; Python makes one up from the file's extension there.
    return os.name != "nt" and bool(mode & stat.S_IXUSR)


def _hash_file(path: Path) -> tuple[str, int]:
    content = hashlib.sha256()
    size = 0
    # O_NOFOLLOW: a link that took the file's place since the walk is an error, not a way out of the folder.
    descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_BINARY", 0))
    with os.fdopen(descriptor, "rb") as stream:
        while chunk := stream.read(_CHUNK):
            content.update(chunk)
            size += len(chunk)
    return content.hexdigest(), size
