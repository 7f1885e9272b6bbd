"""The protected paths of a workspace, and their contents before and after confined programs ran.

The paths are found by name before the first program of a run. Later scans only add to them, and skip unchanged folders.

The sandbox keeps programs from changing these paths. The comparison verifies that, whatever the trick: a folder that
was renamed and created again, a redirected link, a new file. Differences are rolled back.
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
"""Folders of installed packages, with many files and no secrets. A program can't hide a protected path by moving it
into one, because the parents of protected paths can't be renamed."""
MAX_ENTRIES = 1_000_000
"""Scanning this many takes about two seconds. No program is started in a larger workspace."""
MAX_DEPTH, MAX_PATH_BYTES = 64, 2_000
"""A deeper folder is hidden as a whole, because its path may be too long to list."""
_FRESH_NS = 100_000_000
"""A folder that changed more recently is listed again: another change could have the same time stamp."""


class Closed(Struct, frozen=True, kw_only=True):
    """The existing paths of a workspace that a program may not write, or not even read."""

    read_only: tuple[Path, ...] = ()
    hidden: tuple[Path, ...] = ()
    absent: tuple[str, ...] = ()
    """Missing protected paths, relative to the workspace."""
    is_complete: bool = True
    """The whole workspace was scanned."""


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
        """Find the protected paths. `own` are the agent's folders, such as the runs; those outside are ignored.

        Missing paths in folders that the user opened as `writable` are left out.
        """
        inside = [path for path in own if path != workspace and path.is_relative_to(workspace)]
        standing = [*inside, *(workspace / name for name in (*OWN_FILES, *INSTRUCTIONS, *STANDING_FOLDERS))]
        missing = [name for path in standing if (name := _locate_missing(workspace, path))]
        # A mount protects the target of a link, but not the link itself.
        named = [path for path in standing if path.exists() and not path.is_symlink()]
        with self._lock:
            is_complete = self._scan(str(workspace), {str(path) for path in named})
            scanned = [Path(path) for path in self._read_only if os.path.lexists(path)]
            hidden = [Path(path) for path in self._hidden if os.path.lexists(path)]
        # A running program may have created a path that counts as missing; it is moved away when that program ends.
        away = {workspace / name for name in missing}
        read_only = (*named, *scanned, *_follow(workspace, (*scanned, *standing)))
        return Closed(
            read_only=tuple(path for path in dict.fromkeys(read_only) if path not in away),
            hidden=tuple(hidden),
            absent=tuple(dict.fromkeys(name for name in missing if not _is_opened(workspace / name, writable))),
            is_complete=is_complete,
        )

    def _scan(self, workspace: str, passed_over: set[str]) -> bool:
        """Scan the workspace. Returns False if it has too many entries."""
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
        """List a folder; None if that fails, because its content is unknown then."""
        try:
            found = os.lstat(path)
            # A program can set the modification time, but not the change time (ctime).
            stamp = (found.st_dev, found.st_ino, found.st_ctime_ns)
            # Every program start scans all folders; a cached listing costs one lstat.
            known = self._folders.get(path)
            if known is not None and known.stamp == stamp:
                return known
            folder = _list_folder(path, stamp)
        except FileNotFoundError:
            # Removed since its parent was listed: nothing to protect, unlike a folder that can't be read.
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
    """List the targets of links among the paths. Targets outside the workspace are skipped: they aren't writable."""
    led = ((path, path.resolve()) for path in paths if path.exists())
    return [target for path, target in led if target not in {path, workspace} and target.is_relative_to(workspace)]


def _locate_missing(workspace: Path, path: Path) -> str:
    """Return a missing path relative to the workspace, with parent links resolved; empty if it exists or is outside."""
    if os.path.lexists(path) and not is_unsettled(str(path)):
        return ""
    real = path.parent.resolve() / path.name
    return real.relative_to(workspace).as_posix() if real.is_relative_to(workspace) else ""


type ProtectedSnapshot = Mapping[str, str]
"""The state of each file by its path: its kind and the hash of its content. Folders are represented by their files."""

REPOSITORIES = frozenset({".git", ".hg", ".svn"})
_REPOSITORY_PARTS = ("config", "config.worktree", "commondir", "hooks", "info/attributes", "hgrc")
"""The parts of a repository that name programs. The rest changes with every fetch of the user."""
_SETTLED_SECONDS = 0.1
"""A file that changed more recently is read again: another change could have the same time stamp."""
_MAX_FILES = 20_000
_MAX_SHOWN = 10
MAX_CONTENT_BYTES = 32 << 20
"""Limit for all stored contents. A file that does not fit is compared, but can't be restored."""
_EXECUTABLE, _LINK = " executable", "link to "

type _Stamp = tuple[int, int, int, int, int, int]


class ProtectedState:
    """Takes snapshots of the same paths. A file whose stamp (inode, size, times, mode) is unchanged is not read again.

    The stamp includes the ctime, which only the kernel sets: a program can't restore it together with the content.
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
        """`own` are more folders of the agent, `records` is the runs folder; `writable` paths are skipped."""
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
        """Take a snapshot. A few hundred unchanged files take about a millisecond."""
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
            # Its content changes all the time, so only the folder's identity is compared.
            state[str(self._records).removeprefix(inside)] = f"folder {found.st_dev}:{found.st_ino}"
        return state

    def roll_back(self, before: ProtectedSnapshot) -> str:
        """Undo all differences from `before`. Returns a message about them, empty if there are none.

        Changed files are moved to quarantine instead of deleted: they may be the user's own work.
        """
        after = self.snapshot()
        differences = compare(before, after)
        if not differences:
            return ""
        for path in sorted({*before, *after}):
            if self._describe(f"{self._workspace}/{path}") == before.get(path):
                continue  # unchanged, or restored together with a parent link
            if path in before and not self._can_restore(before[path]):
                continue
            with suppress(OSError, ToolFailed):  # reported below as a remaining difference
                self._restore(path, before)
        return _describe_changes(differences, left=compare(before, self.snapshot()), quarantine=self._quarantine)

    def _restore(self, path: str, before: ProtectedSnapshot) -> None:
        # A parent that became a link is moved away first: restoring through it would write to its target.
        for folder in reversed(PurePosixPath(path).parents[:-1]):
            if (self._workspace / folder).is_symlink() and str(folder) not in before:
                self._move(str(folder))
        self._move(path)
        if path in before:
            self._write(path, before[path])

    def _can_restore(self, state: str) -> bool:
        return state.startswith(_LINK) or state.removesuffix(_EXECUTABLE) in self._contents

    def _move(self, path: str) -> None:
        """Move a path to quarantine, or rename it in place if quarantine is on another file system."""
        self._quarantine.mkdir(parents=True, exist_ok=True, mode=0o700)
        name, other = PurePosixPath(path).name, secrets.token_hex(4)
        # Relative to an open folder, because a program may still be replacing parent folders with links.
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
            # O_EXCL: a program that is still running may put a link there again.
            descriptor = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode, dir_fd=folder)
            with os.fdopen(descriptor, "wb") as stream:
                stream.write(self._contents[state.removesuffix(_EXECUTABLE)])

    @contextmanager
    def _open_parent(self, path: str) -> Generator[int]:
        """Open the parent folder without leaving the workspace by a link. Raises `ToolFailed` or `OSError`."""
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
        """List the paths that matter as soon as they exist, and the protected paths that exist now."""
        closed = self._protected.find(self._workspace, self._own)
        standing = [self._workspace / name for name in (*STANDING_FOLDERS, *OWN_FILES)]
        instructions = (self._workspace / name for name in INSTRUCTIONS)
        # Links can't be protected by a mount, so a program can replace them.
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
        """Hash a file, and store its content if there is room."""
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
    """List all files below a folder without following links, or the path itself if it is a file or a link."""
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
        # The link itself counts too: a program could redirect it.
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
