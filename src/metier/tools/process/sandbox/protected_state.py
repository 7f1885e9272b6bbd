"""What the protected paths of a workspace hold, to be compared before and after confined programs ran.

The sandbox keeps programs from changing these paths. This looks whether it did, whatever trick was used: a folder that
was renamed away and made anew, a link that leads elsewhere, a file where there was none. Reads only.
"""

import hashlib
import os
import stat
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

from metier.tools.process.sandbox.surroundings import find_closed
from metier.tools.protected import OWN_FILES, STANDING_FOLDERS

type Held = Mapping[str, str]
"""By its path, what a file is: a digest of its content, with its kind. Folders count by what is in them."""

REPOSITORIES = frozenset({".git", ".hg", ".svn"})
_REPOSITORY_PARTS = ("config", "config.worktree", "commondir", "hooks", "info/attributes", "hgrc")
"""Of a repository what names programs. The rest changes with every fetch of the user."""
_SETTLED_SECONDS = 0.1
"""A younger change could be followed by another one with the same time stamp: such a file is read again."""
_MAX_FILES = 20_000
_CHUNK_BYTES = 1 << 20

type _Stamp = tuple[int, int, int, int, int, int]


class ProtectedState:
    """Looks at the same paths again and again. A file whose stamp (inode, size, times, mode) is the same is not read.

    The time of the last change (ctime) is set by the kernel: a program that puts bytes back in place still moves it.
    """

    def __init__(
        self, workspace: Path, *, own: tuple[Path, ...], records: Path | None, writable: tuple[Path, ...]
    ) -> None:
        """`own` are further folders of the agent's own, `records` the runs; what is `writable` is not looked at."""
        self._workspace = workspace
        self._own = own
        self._records = records if records is not None and records.is_relative_to(workspace) else None
        self._writable = writable
        self._roots: tuple[Path, ...] = ()
        self._known: dict[str, tuple[_Stamp, str]] = {}

    def look(self) -> Held:
        """Takes about a millisecond for a few hundred files that did not change."""
        self._roots = self._roots or tuple(self._list_roots())
        held: dict[str, str] = {}
        inside = f"{self._workspace}/"
        for root in self._roots:
            for file in self._list_files(root):
                held[file.removeprefix(inside)] = self._describe(file)
                if len(held) >= _MAX_FILES:
                    return held
        if self._records is not None and (found := _stat(self._records)):
            # Its content changes all the time; that it is the same folder does not.
            held[str(self._records).removeprefix(inside)] = f"folder {found.st_dev}:{found.st_ino}"
        return held

    def _list_roots(self) -> Iterator[Path]:
        """Those that mean something as soon as they exist, and those further down that are there now."""
        closed = find_closed(self._workspace, self._own)
        standing = (self._workspace / name for name in (*STANDING_FOLDERS, *OWN_FILES))
        for path in dict.fromkeys((*standing, *self._own, *closed.read_only)):
            if path == self._records or any(path.is_relative_to(place) for place in self._writable):
                continue
            if path.is_relative_to(self._workspace):
                yield path

    def _list_files(self, root: Path) -> Iterator[str]:
        if root.name in REPOSITORIES and root.is_dir():
            for part in _REPOSITORY_PARTS:
                yield from _walk(str(root / part))
            return
        yield from _walk(str(root))

    def _describe(self, file: str) -> str:
        try:
            found = os.lstat(file)
            if stat.S_ISLNK(found.st_mode):
                target = os.path.realpath(file)
                leads = "" if os.path.islink(target) else self._describe(target)  # noqa: PTH114  it may lead to itself
                return f"link to {os.readlink(file)} {leads}"  # noqa: PTH115
            if not stat.S_ISREG(found.st_mode):
                return f"kind {stat.S_IFMT(found.st_mode):o}"
            return f"{self._digest(file, found)}{' executable' if found.st_mode & stat.S_IXUSR else ''}"
        except OSError as error:
            return f"not readable: {error.strerror}"

    def _digest(self, file: str, found: os.stat_result) -> str:
        stamp = (found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns, found.st_mode)
        known = self._known.get(file)
        if known is not None and known[0] == stamp:
            return known[1]
        digest = _hash(file)
        if time.time() - found.st_ctime > _SETTLED_SECONDS:
            self._known[file] = (stamp, digest)
        return digest


def compare(before: Held, after: Held) -> tuple[str, ...]:
    """What is different, one sentence a path; empty when nothing is."""
    made = (f"{path!r} was made" for path in sorted(after.keys() - before.keys()))
    gone = (f"{path!r} was removed" for path in sorted(before.keys() - after.keys()))
    changed = (f"{path!r} was changed" for path in sorted(before.keys() & after.keys()) if before[path] != after[path])
    return (*made, *gone, *changed)


def _walk(path: str) -> Iterator[str]:
    """Every file beneath, links not followed; the path itself where it is no folder; nothing where nothing is."""
    pending = [path]
    while pending:
        here = pending.pop()
        try:
            entries = os.scandir(here)
        except NotADirectoryError:
            yield here
            continue
        except OSError:
            if os.path.lexists(here):
                yield here
            continue
        if here == path and os.path.islink(here):  # noqa: PTH114
            yield here
        with entries:
            for entry in entries:
                if entry.is_dir(follow_symlinks=False):
                    pending.append(entry.path)
                else:
                    yield entry.path


def _hash(file: str) -> str:
    digest = hashlib.sha256()
    descriptor = os.open(file, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    with os.fdopen(descriptor, "rb") as stream:
        while chunk := stream.read(_CHUNK_BYTES):
            digest.update(chunk)
    return digest.hexdigest()


def _stat(path: Path) -> os.stat_result | None:
    try:
        return path.lstat()
    except OSError:
        return None
