"""The protected paths of a workspace, and their contents before and after confined programs ran.

The paths are found before the first program of a run, and only added to after that, by names alone; a folder that did
not change is not listed again.

The sandbox keeps programs from changing these paths. The comparison checks that it did, whatever trick was used: a
folder that was renamed away and created again, a link that leads elsewhere, a file where there was none. Differences
are restored.
"""

import hashlib
import os
import secrets
import stat
import threading
import time
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path, PurePosixPath

from msgspec import Struct

from metier.definitions.files.contained_path import READ_FOLDER, choose_opener
from metier.definitions.files.quarantine import is_unsettled
from metier.errors import ToolFailed
from metier.tools.protected import INSTRUCTIONS, OWN_FILES, SECRETS_REASON, STANDING_FOLDERS, protected_name

_PASSED_OVER = frozenset({"node_modules", "site-packages", "__pycache__", ".venv", "venv", ".tox", ".mypy_cache"})
"""Packages of others: many names, and no secrets among them. Nothing protected can be moved into one: the folders
around it cannot be renamed."""
MAX_ENTRIES = 1_000_000
"""About two seconds. In a workspace with more, no program is started."""
MAX_DEPTH, MAX_PATH_BYTES = 64, 2_000
"""A folder further down is hidden as a whole: its path may be too long to list."""
_FRESH_NS = 100_000_000
"""A younger change could be followed by another one with the same time stamp: such a folder is listed again."""


class Closed(Struct, frozen=True, kw_only=True):
    """The parts of a workspace that a program may not write, or not even read. Absolute paths that exist."""

    read_only: tuple[Path, ...] = ()
    hidden: tuple[Path, ...] = ()
    absent: tuple[str, ...] = ()
    """Protected paths that do not exist, relative to the workspace."""
    is_complete: bool = True
    """The whole workspace was looked at."""


class _Folder(Struct, frozen=True, kw_only=True):
    stamp: tuple[int, int, int]
    entries: int = 0
    folders: tuple[str, ...] = ()
    read_only: tuple[str, ...] = ()
    hidden: tuple[str, ...] = ()


class ProtectedPaths:
    """Shared by all programs of a run: once found, a path stays protected, whatever hides it from a later scan."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._folders: dict[str, _Folder] = {}
        self._read_only: dict[str, None] = {}
        self._hidden: dict[str, None] = {}

    def find(self, workspace: Path, own: Iterable[Path], *, writable: Iterable[Path] = ()) -> Closed:
        """`own` are folders of the agent's own, such as the runs and the skills; those outside do not count.

        Missing paths that the user opened as `writable` are left out.
        """
        inside = [path for path in own if path != workspace and path.is_relative_to(workspace)]
        standing = [*inside, *(workspace / name for name in (*OWN_FILES, *INSTRUCTIONS, *STANDING_FOLDERS))]
        missing = [name for path in standing if (name := _locate_missing(workspace, path))]
        # A mount can only hold the target of a link in place, not the link itself.
        named = [path for path in standing if path.exists() and not path.is_symlink()]
        with self._lock:
            is_complete = self._scan(str(workspace), {str(path) for path in named})
            scanned = [Path(path) for path in self._read_only if os.path.lexists(path)]
            hidden = [Path(path) for path in self._hidden if os.path.lexists(path)]
        # Another program that runs may have created a path that counts as missing, and it is moved away with its end.
        away = {workspace / name for name in missing}
        read_only = (*named, *scanned, *_follow(workspace, (*scanned, *standing)))
        return Closed(
            read_only=tuple(path for path in dict.fromkeys(read_only) if path not in away),
            hidden=tuple(hidden),
            absent=tuple(dict.fromkeys(name for name in missing if not _is_opened(workspace / name, writable))),
            is_complete=is_complete,
        )

    def _scan(self, workspace: str, passed_over: set[str]) -> bool:
        """False if there is more than can be looked at."""
        pending, seen = [(workspace, 0)], 0
        while pending:
            path, depth = pending.pop()
            is_near = depth <= MAX_DEPTH and len(os.fsencode(path)) <= MAX_PATH_BYTES
            folder = self._list(path) if is_near else None
            if folder is None:
                self._hidden[path] = None
                continue
            self._read_only |= dict.fromkeys(folder.read_only)
            self._hidden |= dict.fromkeys(folder.hidden)
            pending += [(inner, depth + 1) for inner in folder.folders if inner not in passed_over]
            seen += folder.entries
            if seen > MAX_ENTRIES:
                return False
        return True

    def _list(self, path: str) -> _Folder | None:
        """None for a folder that cannot be listed: what it holds is not known."""
        try:
            found = os.lstat(path)
            # A program can set the time of the last modification, but not that of the last change.
            stamp = (found.st_dev, found.st_ino, found.st_ctime_ns)
            # Every program start asks for all folders: a listing that is known costs one lstat.
            known = self._folders.get(path)
            if known is not None and known.stamp == stamp:
                return known
            folder = _list_folder(path, stamp)
        except FileNotFoundError:
            return _Folder(stamp=(0, 0, 0))
        except OSError:
            return None
        if time.time_ns() - found.st_ctime_ns > _FRESH_NS:
            self._folders[path] = folder
        return folder


def _list_folder(path: str, stamp: tuple[int, int, int]) -> _Folder:
    folders: list[str] = []
    read_only: list[str] = []
    hidden: list[str] = []
    count = 0
    with os.scandir(path) as entries:
        for entry in entries:
            count += 1
            name = entry.name
            if reason := protected_name(name):
                if not entry.is_symlink():
                    (hidden if reason == SECRETS_REASON else read_only).append(entry.path)
            elif name not in _PASSED_OVER and entry.is_dir(follow_symlinks=False):
                folders.append(entry.path)
    return _Folder(stamp=stamp, entries=count, folders=tuple(folders), read_only=tuple(read_only), hidden=tuple(hidden))


def _is_opened(path: Path, writable: Iterable[Path]) -> bool:
    return any(path.is_relative_to(place) for place in writable)


def _follow(workspace: Path, paths: Iterable[Path]) -> list[Path]:
    """List the targets of links among the paths; paths outside of the workspace are not writable anyway."""
    led = ((path, path.resolve()) for path in paths if path.exists())
    return [target for path, target in led if target not in {path, workspace} and target.is_relative_to(workspace)]


def _locate_missing(workspace: Path, path: Path) -> str:
    """Relative to the workspace, with links around it resolved; nothing if it exists, or would lie outside."""
    if os.path.lexists(path) and not is_unsettled(str(path)):
        return ""
    real = path.parent.resolve() / path.name
    return real.relative_to(workspace).as_posix() if real.is_relative_to(workspace) else ""


type ProtectedSnapshot = Mapping[str, str]
"""By its path, what a file is: a digest of its content, with its kind. Folders count by what is in them."""

REPOSITORIES = frozenset({".git", ".hg", ".svn"})
_REPOSITORY_PARTS = ("config", "config.worktree", "commondir", "hooks", "info/attributes", "hgrc")
"""Of a repository what names programs. The rest changes with every fetch of the user."""
_SETTLED_SECONDS = 0.1
"""A younger change could be followed by another one with the same time stamp: such a file is read again."""
_MAX_FILES = 20_000
_MAX_SHOWN = 10
MAX_CONTENT_BYTES = 32 << 20
"""Of all files together, to restore them from. One that does not fit is compared and not restored."""
_EXECUTABLE, _LINK = " executable", "link to "

type _Stamp = tuple[int, int, int, int, int, int]


class ProtectedState:
    """Looks at the same paths again and again. A file whose stamp (inode, size, times, mode) is the same is not read.

    The time of the last change (ctime) is set by the kernel: a program that puts bytes back in place still moves it.
    """

    def __init__(
        self,
        workspace: Path,
        *,
        protected: ProtectedPaths,
        own: tuple[Path, ...],
        records: Path | None,
        writable: tuple[Path, ...],
        quarantine: Path,
    ) -> None:
        """`own` are further folders of the agent's own, `records` the runs; what is `writable` is not looked at."""
        self._workspace = workspace
        self._protected = protected
        self._own = own
        self._records = records if records is not None and records.is_relative_to(workspace) else None
        self._writable = writable
        self._quarantine = quarantine
        self._roots: tuple[Path, ...] = ()
        self._links: tuple[Path, ...] = ()
        self._known: dict[str, tuple[_Stamp, str]] = {}
        self._modes: dict[str, int] = {}
        self._contents: dict[str, bytes] = {}
        self._room = MAX_CONTENT_BYTES

    def snapshot(self) -> ProtectedSnapshot:
        """Takes about a millisecond for a few hundred files that did not change."""
        self._roots = self._roots or tuple(self._list_roots())
        state: dict[str, str] = {}
        inside = f"{self._workspace}/"
        for root in self._roots:
            for file in self._list_files(root):
                state[file.removeprefix(inside)] = self._describe(file)
                if len(state) >= _MAX_FILES:
                    return state
        for link in self._links:
            if os.path.lexists(link):
                state[str(link).removeprefix(inside)] = self._describe(str(link))
        if self._records is not None and (found := _stat(self._records)):
            # Its content changes all the time; that it is the same folder does not.
            state[str(self._records).removeprefix(inside)] = f"folder {found.st_dev}:{found.st_ino}"
        return state

    def roll_back(self, before: ProtectedSnapshot) -> str:
        """Undo every difference to `before`. Returns a sentence that names them, or nothing if there are none.

        What is there now is moved to quarantine: it may be the user's own work.
        """
        after = self.snapshot()
        differences = compare(before, after)
        if not differences:
            return ""
        for path in sorted({*before, *after}):
            if self._describe(f"{self._workspace}/{path}") == before.get(path):
                continue  # also if a link above it was restored
            if path in before and not self._can_restore(before[path]):
                continue
            with suppress(OSError, ToolFailed):  # a difference that is left is found below
                self._restore(path, before)
        return _describe_changes(differences, left=compare(before, self.snapshot()), quarantine=self._quarantine)

    def _restore(self, path: str, before: ProtectedSnapshot) -> None:
        for folder in reversed(PurePosixPath(path).parents[:-1]):
            if (self._workspace / folder).is_symlink() and str(folder) not in before:
                self._move(str(folder))
        self._move(path)
        if path in before:
            self._write(path, before[path])

    def _can_restore(self, state: str) -> bool:
        return state.startswith(_LINK) or state.removesuffix(_EXECUTABLE) in self._contents

    def _move(self, path: str) -> None:
        """Move it to the quarantine, or rename it in place if that is on another disk."""
        self._quarantine.mkdir(parents=True, exist_ok=True, mode=0o700)
        name, other = PurePosixPath(path).name, secrets.token_hex(4)
        # Relative to an open folder: the program may still be replacing folders on the way with links.
        with self._open_parent(path) as folder, suppress(FileNotFoundError):
            try:
                os.rename(name, self._quarantine / f"{name}.quarantined-{other}", src_dir_fd=folder)
            except FileNotFoundError:
                raise
            except OSError:
                os.rename(name, f"{name}.quarantined-{other}", src_dir_fd=folder, dst_dir_fd=folder)

    def _write(self, path: str, state: str) -> None:
        (self._workspace / path).parent.mkdir(parents=True, exist_ok=True)
        name = PurePosixPath(path).name
        with self._open_parent(path) as folder:
            if state.startswith(_LINK):
                os.symlink(state.removeprefix(_LINK).partition("\0")[0], name, dir_fd=folder)
                return
            mode = self._modes[f"{self._workspace}/{path}"]
            descriptor = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode, dir_fd=folder)
            with os.fdopen(descriptor, "wb") as stream:
                stream.write(self._contents[state.removesuffix(_EXECUTABLE)])

    @contextmanager
    def _open_parent(self, path: str) -> Generator[int]:
        """Beneath the workspace, whatever links are on the way. Raises `ToolFailed` or `OSError`."""
        root = os.open(self._workspace, READ_FOLDER)
        try:
            parent = choose_opener()(root, path.rpartition("/")[0], links=True).descriptor
        finally:
            os.close(root)
        try:
            yield parent
        finally:
            os.close(parent)

    def _list_roots(self) -> Iterator[Path]:
        """Those that mean something as soon as they exist, and those further down that are there now."""
        closed = self._protected.find(self._workspace, self._own)
        standing = [self._workspace / name for name in (*STANDING_FOLDERS, *OWN_FILES)]
        instructions = (self._workspace / name for name in INSTRUCTIONS)
        # A link cannot be mounted over, so a program can replace it.
        links = [path for path in (*instructions, *(each.parent for each in standing)) if path.is_symlink()]
        self._links = tuple(dict.fromkeys(links))
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
                return f"{_LINK}{os.readlink(file)}\0{leads}"  # noqa: PTH115
            if not stat.S_ISREG(found.st_mode):
                return f"kind {stat.S_IFMT(found.st_mode):o}"
            self._modes.setdefault(file, stat.S_IMODE(found.st_mode))
            return f"{self._digest(file, found)}{_EXECUTABLE if found.st_mode & stat.S_IXUSR else ''}"
        except OSError as error:
            return f"not readable: {error.strerror}"

    def _digest(self, file: str, found: os.stat_result) -> str:
        stamp = (found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns, found.st_mode)
        known = self._known.get(file)
        if known is not None and known[0] == stamp:
            return known[1]
        digest = self._read(file)
        if time.time() - found.st_ctime > _SETTLED_SECONDS:
            self._known[file] = (stamp, digest)
        return digest

    def _read(self, file: str) -> str:
        """The digest of a file, whose content is kept as long as there is room."""
        descriptor = os.open(file, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        with os.fdopen(descriptor, "rb") as stream:
            content = stream.read(self._room + 1)
            if len(content) > self._room:
                stream.seek(0)
                return hashlib.file_digest(stream, "sha256").hexdigest()
        digest = hashlib.sha256(content).hexdigest()
        if digest not in self._contents:
            self._contents[digest] = content
            self._room -= len(content)
        return digest


def compare(before: ProtectedSnapshot, after: ProtectedSnapshot) -> tuple[str, ...]:
    """Describe the differences, one sentence per path; empty if there are none."""
    made = (f"{path!r} was made" for path in sorted(after.keys() - before.keys()))
    gone = (f"{path!r} was removed" for path in sorted(before.keys() - after.keys()))
    changed = (f"{path!r} was changed" for path in sorted(before.keys() & after.keys()) if before[path] != after[path])
    return (*made, *gone, *changed)


def _describe_changes(differences: Sequence[str], *, left: Sequence[str], quarantine: Path) -> str:
    shown = ", ".join(differences[:_MAX_SHOWN])
    more = f" and {len(differences) - _MAX_SHOWN} more" if len(differences) > _MAX_SHOWN else ""
    changed = f"Protected paths were changed while programs ran: {shown}{more}. "
    if not left:
        return f"{changed}They were restored; the changed versions are in '{quarantine}'"
    return (
        f"{changed}Not all could be restored: {', '.join(left[:_MAX_SHOWN])}. Check them before the next run reads them"
    )


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


def _stat(path: Path) -> os.stat_result | None:
    try:
        return path.lstat()
    except OSError:
        return None
