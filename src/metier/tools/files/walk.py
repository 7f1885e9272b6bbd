"""List the files beneath a folder, by descriptor and without following links. Bounded, sorted, deterministic."""

import os
import stat
from collections.abc import Collection
from dataclasses import field

from metier.dataclass import dataclass
from metier.definitions.files.contained_path import READ_FOLDER
from metier.tools.base import PathGuard
from metier.tools.files.path_patterns import PathPattern
from metier.tools.files.scope import Scope
from metier.tools.protected import is_closed

PASSED_OVER = frozenset(
    {
        ".git", ".hg", ".svn", "node_modules", ".venv", "venv", "__pycache__", ".tox", ".nox", ".mypy_cache",
        ".ruff_cache", ".pytest_cache",
    }
)  # fmt: skip
"""Folders that hold what others made; looked into only when they are named."""
MAX_ENTRIES = 200_000
MAX_DEPTH = 64


@dataclass(frozen=True, slots=True)
class FoundFile:
    path: str
    """As the scope shows paths: relative to the workspace, or absolute in another root."""
    modified_ns: int
    size: int


@dataclass(slots=True)
class _Walk:
    pattern: PathPattern | None
    passed_over: frozenset[str]
    skip: Collection[str]
    """Paths of folders that are left out, as `FoundFile.path` shows them."""
    prefix: str
    files: list[FoundFile] = field(default_factory=list[FoundFile])
    entries: int = 0
    stopped_in: str | None = None
    too_deep: str | None = None

    def visit(self, folder: int, inside: str, depth: int) -> None:
        """`inside` is the path from the folder that the walk began in, with a slash at its end."""
        folders: list[str] = []
        with os.scandir(folder) as entries:
            for entry in entries:
                self.entries += 1
                if self.entries > MAX_ENTRIES:
                    self._stop(inside)
                    return
                self._sort_in(entry, inside, folders)
        if folders and depth >= MAX_DEPTH:
            self.too_deep = self.too_deep or f"{self.prefix}{inside}{min(folders)}"
            return
        for name in sorted(folders):
            if self.stopped_in is not None:
                return
            try:
                child = os.open(name, READ_FOLDER | os.O_NOFOLLOW, dir_fd=folder)
            except OSError:
                continue  # removed, replaced by a link or closed to us: there is nothing to list
            try:
                self.visit(child, f"{inside}{name}/", depth + 1)
            finally:
                os.close(child)

    def _stop(self, inside: str) -> None:
        self.stopped_in = self.stopped_in or f"{self.prefix}{inside}".rstrip("/") or "."

    def _sort_in(self, entry: os.DirEntry[str], inside: str, folders: list[str]) -> None:
        path = f"{inside}{entry.name}"
        try:
            if entry.is_dir(follow_symlinks=False):
                shown = f"{self.prefix}{path}"
                # Looked at closely only below a folder that can be meant: there may be many others.
                is_own = ".agent" in shown.lower() and is_closed(shown)
                if entry.name not in self.passed_over and shown not in self.skip and not is_own:
                    folders.append(entry.name)
            elif self.pattern is None or self.pattern.matches(path):
                status = entry.stat(follow_symlinks=False)
                if stat.S_ISREG(status.st_mode):
                    self.files.append(FoundFile(f"{self.prefix}{path}", status.st_mtime_ns, status.st_size))
        except FileNotFoundError:
            return


@dataclass(frozen=True, slots=True)
class Listing:
    files: list[FoundFile]
    """Sorted by path."""
    stopped_in: str | None = None
    """The folder in which the limit of entries was reached; None where everything was seen."""
    too_deep: str | None = None
    """A folder that was not looked into because it is beneath too many others."""

    @property
    def is_complete(self) -> bool:
        return self.stopped_in is None and self.too_deep is None


def describe_stop(listing: Listing) -> str:
    """Where a walk ended that did not see everything, and how to go on."""
    if listing.stopped_in is not None:
        return (
            f"[Stopped at the limit of {MAX_ENTRIES} entries, in folder {listing.stopped_in!r}: files behind it were "
            "not looked at. Name a smaller folder by 'path']"
        )
    return (
        f"[Not looked into {listing.too_deep!r} and whatever else is beneath more than {MAX_DEPTH} folders. "
        "Name such a folder by 'path']"
    )


def list_files(
    scope: Scope, folder: str, pattern: PathPattern | None, *, guard: PathGuard, skip: Collection[str] = ()
) -> Listing:
    """Raises `ToolFailed` when the folder is not there or not open to the run."""
    named = pattern.names if pattern else frozenset[str]()
    with scope.open_folder(folder, guard=guard) as opened:
        shown = scope.canonical(folder)
        prefix = "" if shown == "." else f"{shown}/"
        walk = _Walk(pattern=pattern, passed_over=PASSED_OVER - named, skip=skip, prefix=prefix)
        walk.visit(opened.descriptor, "", 0)
    walk.files.sort(key=lambda file: file.path.split("/"))
    return Listing(walk.files, stopped_in=walk.stopped_in, too_deep=walk.too_deep)
