"""Scope of the file tools: open roots, canonical paths, and files that must not be written.

A path is made canonical as text, then opened by descriptor below its root. Checks apply to the open file, never to a
name that could mean another file a moment later.
"""

import errno
import os
import re
import stat
from collections.abc import Collection, Generator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import override

from anyio.to_thread import run_sync
from msgspec import Struct
from pydantic import JsonValue

from metier.definitions.files.contained_path import READ_FOLDER, Opened, Opener, choose_opener, leads_out
from metier.errors import ToolFailed
from metier.tools.base import NoGuard, PathGuard
from metier.tools.protected import is_closed, protected, recorded

MAX_PATH_BYTES = 4096
_NEW_FOLDER_MODE = 0o777
"""Restricted by the process's umask, as usual."""
# On other systems these are absolute; here they would be names in the workspace that no user expects.
_DRIVE = re.compile(r"[A-Za-z]:(?:/|$)")
_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+:/")
_TURNING = re.compile("[\u202a-\u202e\u2066-\u2069]")
"""Bidirectional control characters, which display a name in another order than it is stored."""
_OPEN = NoGuard()


class Spot(Struct, frozen=True):
    """A path in canonical form: no `..` and no empty parts."""

    root: Path
    path: str
    """Relative to the root; empty for the root itself."""


class Target(Struct, frozen=True, kw_only=True):
    """A name in an open folder, where the caller will write a file."""

    folder: int
    name: str
    path: str
    """The canonical path for users and rules, with links resolved."""
    status: os.stat_result | None
    """The status of the regular file with this name; None if there is none."""


class Scope:
    """The folders that are open to a run. The first is the workspace: relative paths start there."""

    def __init__(
        self,
        roots: Sequence[Path],
        *,
        protect: bool = True,
        own_folders: Sequence[str] = (),
        records: Sequence[str] = (),
        links: bool = True,
        opener: Opener | None = None,
    ) -> None:
        """`protect` rejects writes to protected files. `links=False` follows no symbolic links at all.

        By default, links are followed if they are relative and stay below their root. `own_folders` and `records` are
        relative to the workspace; `records` are protected even without `protect`.
        """
        # Each root with both of its names, because a model may write a path with links resolved or not.
        self._roots = tuple((Path(os.path.abspath(root)), root.resolve()) for root in roots)  # noqa: PTH100  as text
        # Device and inode, to notice a root that was replaced during the run.
        self._identities = {real: found for _, real in self._roots if (found := _identify(real)) is not None}
        self._protect = protect
        self._own_folders = tuple(own_folders)
        self._records = tuple(records)
        self._links = links
        self._opener = opener or choose_opener()

    @property
    def workspace(self) -> Path:
        return self._roots[0][1]

    def locate(self, text: str) -> Spot:
        """Return the root of a path and its place below it. Raises `ToolFailed` for a path outside all roots."""
        check_text(text)
        if not text.startswith("/"):
            return Spot(self.workspace, canonical_path(self.workspace, text))
        for given, real in self._roots:
            for root in (given, real):
                try:
                    return Spot(real, canonical_path(root, text))
                except ToolFailed:
                    continue
        raise leads_out(text)

    def refuse(self, text: str, *, writes: bool = False) -> str:
        """Return why a path is not allowed, as far as its text tells; empty if it is."""
        try:
            spot = self.locate(text)
            if writes:
                self._check_unprotected(spot.root, spot.path)
        except ToolFailed as error:
            return error.sentence
        return ""

    def canonical(self, text: str) -> str:
        """Return the path for rules: relative in the workspace, with links resolved in the part that exists."""
        spot = self.locate(text)
        # The last parts may not exist yet, as for a new file: links can only be in the part that does.
        head, rest = spot.path, list[str]()
        while True:
            try:
                with self._open(Spot(spot.root, head), text) as opened:
                    return self._show(spot.root, "/".join([opened.path, *rest]).strip("/"))
            except ToolFailed as error:
                if error.code != "not_found" or not head:
                    raise
            head, _, name = head.rpartition("/")
            rest.insert(0, name)

    @contextmanager
    def open_file(self, text: str, *, guard: PathGuard = _OPEN) -> Generator[Opened]:
        """Open a file. `guard` checks its real path before the caller gets it."""
        spot = self.locate(text)
        with self._open(spot, text) as opened:
            guard.check(self._show(spot.root, opened.path))
            if opened.is_folder:
                raise ToolFailed(f"Path {text!r} is a folder", hint="Use Glob to list it", code="not_a_file")
            yield opened

    @contextmanager
    def open_folder(self, text: str, *, guard: PathGuard = _OPEN, key: str = "path") -> Generator[Opened]:
        spot = self.locate(text)
        with self._open(spot, text) as opened:
            guard.check(self._show(spot.root, opened.path), key=key)
            if not opened.is_folder:
                raise ToolFailed(f"Path {text!r} is a file, not a folder", code="not_a_folder")
            yield opened

    @contextmanager
    def open_target(self, text: str, *, create_folders: bool, guard: PathGuard = _OPEN) -> Generator[Target]:
        """Open the folder of a file to write. Missing folders are created only after all checks."""
        spot = self.locate(text)
        head, _, name = spot.path.rpartition("/")
        # The canonical form drops a final slash, with which the caller means a folder.
        if not name or text.endswith(("/", "/.")):
            raise ToolFailed(f"Path {text!r} is a folder", code="not_a_file")
        with ExitStack() as opened, _plain_errors(text):
            folder, missing = self._open_deepest(opened, Spot(spot.root, head), text)
            path = "/".join(part for part in (folder.path, *missing, name) if part)
            self._check_unprotected(spot.root, path)
            # Check the path of the open folder: a link in the text may have changed since the call was judged.
            guard.check(self._show(spot.root, path))
            if missing and not create_folders:
                raise _not_found(text)
            descriptor = folder.descriptor
            for part in missing:
                descriptor = _make_folder(descriptor, part)
                opened.callback(os.close, descriptor)
            status = _find_status(descriptor, name, text)
            yield Target(folder=descriptor, name=name, path=self._show(spot.root, path), status=status)

    def _open_deepest(self, opened: ExitStack, spot: Spot, text: str) -> tuple[Opened, list[str]]:
        """Open the deepest existing folder of a path, and return it with the missing names below it."""
        head, missing = spot.path, list[str]()
        while True:
            try:
                folder = opened.enter_context(self._open(Spot(spot.root, head), text))
            except ToolFailed as error:
                if error.code != "not_found" or not head:
                    raise
                head, _, name = head.rpartition("/")
                missing.insert(0, name)
                continue
            if not folder.is_folder:
                raise ToolFailed(f"Path {text!r} goes through {folder.path!r}, which is a file", code="not_a_folder")
            return folder, missing

    @contextmanager
    def _open(self, spot: Spot, text: str) -> Generator[Opened]:
        with ExitStack() as stack:
            with _plain_errors(text):
                root = os.open(spot.root, READ_FOLDER)
                stack.callback(os.close, root)
                self._check_root(spot.root, root)
                # Everything below is opened relative to descriptors, so no folder on the way can be swapped for a link.
                opened = self._opener(root, spot.path, links=self._links)
                stack.callback(os.close, opened.descriptor)
                if is_closed(opened.path):
                    raise ToolFailed(
                        f"Path {text!r} is closed: it holds the keys of this user", code="permission_denied"
                    )
            yield opened

    def _check_root(self, path: Path, descriptor: int) -> None:
        """Check that a root is still the same folder, and not a link that was put in its place."""
        known = self._identities.get(path)
        status = os.fstat(descriptor)
        if known is not None and (status.st_dev, status.st_ino) != known:
            raise ToolFailed(
                f"The folder {str(path)!r} was replaced since the run started",
                hint="Ask the user to restore it or to start a new run",
                code="conflict",
            )

    def _check_unprotected(self, root: Path, path: str) -> None:
        folders = self._own_folders if self._protect else self._records
        check = protected if self._protect else recorded
        if reason := check(path, own_folders=folders if root == self.workspace else ()):
            raise ToolFailed(
                f"Path {path!r} is protected: it holds {reason}",
                # Journals contain the reasons of `refuse` and replays compare them, so the wording must not change.
                hint="Only a person changes it",
                code="permission_denied",
            )

    def _show(self, root: Path, path: str) -> str:
        return path or "." if root == self.workspace else str(root / path)


class FileTool:
    """A tool with a file's path among its arguments."""

    writes = False

    def __init__(self, scope: Scope) -> None:
        self._scope = scope

    def get_path(self, arguments: Mapping[str, JsonValue]) -> str:
        return str(arguments["path"])

    def refuse(self, arguments: Mapping[str, JsonValue]) -> str:
        """Reject a path that is outside the workspace, or protected from writes."""
        return self._scope.refuse(self.get_path(arguments), writes=self.writes)

    async def locate(self, arguments: dict[str, JsonValue]) -> dict[str, str]:
        return {"path": await run_sync(self._scope.canonical, self.get_path(arguments))}


class FolderTool(FileTool):
    """A tool with a folder's path among its arguments, by default the workspace."""

    def __init__(self, scope: Scope, *, skip: Collection[str] = ()) -> None:
        """`skip` are canonical paths of folders to skip."""
        super().__init__(scope)
        self._skip = frozenset(skip)

    @override
    def get_path(self, arguments: Mapping[str, JsonValue]) -> str:
        return str(arguments.get("path") or ".")


def _identify(folder: Path) -> tuple[int, int] | None:
    try:
        status = folder.stat()
    except OSError:
        return None
    return status.st_dev, status.st_ino


def canonical_path(root: Path, text: str) -> str:
    """Return a path as text relative to `root`, without `..` and empty parts; empty for the root itself. Pure.

    Raises `ToolFailed` for a path outside, or one that other systems or programs could read in another way.
    """
    check_text(text)
    parts: list[str] = []
    for part in _split(text) if not text.startswith("/") else _beneath(root, text):
        if part == "..":
            if not parts:
                raise leads_out(text)
            parts.pop()
        else:
            parts.append(part)
    return "/".join(parts)


def check_text(text: str) -> None:
    """Reject suspicious spellings of a path, each with its own message."""
    reason = ""
    if not text.strip():
        reason = "is empty"
    elif any(ord(letter) < ord(" ") or letter == "\x7f" for letter in text):
        reason = "contains a control character"
    elif "\\" in text:
        reason = "contains a backslash; write '/' between folders"
    elif text.startswith("~"):
        reason = "begins with '~', which is not expanded here"
    elif _SCHEME.match(text) or _DRIVE.match(text):
        reason = "is not a path of this machine's files"
    elif _TURNING.search(text):
        reason = "contains characters that turn the direction of text"
    elif len(text.encode("utf-8", "surrogatepass")) > MAX_PATH_BYTES:
        reason = "is too long"
    elif any("\ud800" <= letter <= "\udfff" for letter in text):
        reason = "is not valid Unicode"
    if reason:
        raise ToolFailed(f"Path {text[:200]!r} {reason}", code="permission_denied")


def _beneath(root: Path, text: str) -> list[str]:
    """Return the parts of an absolute path below the root. Each `..` is resolved as text."""
    parts: list[str] = []
    for part in _split(text):
        if part != "..":
            parts.append(part)
        elif parts:
            parts.pop()
    base = _split(str(root))
    if parts[: len(base)] != base:
        raise leads_out(text)
    return parts[len(base) :]


def _split(text: str) -> list[str]:
    return [part for part in text.split("/") if part not in {"", "."}]


def _make_folder(parent: int, name: str) -> int:
    try:
        os.mkdir(name, _NEW_FOLDER_MODE, dir_fd=parent)
        # The file inside survives a power cut only if the name of its folder does.
        os.fsync(parent)
    except FileExistsError:
        pass  # created by another process meanwhile; opening it below rejects a link
    return os.open(name, READ_FOLDER | os.O_NOFOLLOW, dir_fd=parent)


def _find_status(folder: int, name: str, text: str) -> os.stat_result | None:
    try:
        status = os.stat(name, dir_fd=folder, follow_symlinks=False)
    except FileNotFoundError:
        return None
    if stat.S_ISLNK(status.st_mode):
        raise ToolFailed(
            f"Path {text!r} is a symbolic link", hint="Write to the file that it leads to", code="permission_denied"
        )
    if not stat.S_ISREG(status.st_mode):
        raise ToolFailed(f"Path {text!r} is not a file", code="not_a_file")
    return status


def _not_found(text: str) -> ToolFailed:
    return ToolFailed(f"There is no file {text!r}", code="not_found")


@contextmanager
def _plain_errors(text: str) -> Generator[None]:
    """Translate system errors into messages for the model."""
    try:
        yield
    except FileNotFoundError as error:
        raise _not_found(text) from error
    except NotADirectoryError as error:
        raise ToolFailed(f"Path {text!r} goes through a file as if it were a folder", code="not_found") from error
    except PermissionError as error:
        raise ToolFailed(f"The system does not let the agent open {text!r}", code="permission_denied") from error
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise ToolFailed(f"Path {text!r} goes through too many links", code="permission_denied") from error
        raise ToolFailed(f"Path {text!r} cannot be opened: {error.strerror}", code="execution_failed") from error
