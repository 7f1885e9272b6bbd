"""List the files beneath a folder, by descriptor and without following links. Bounded, sorted, deterministic."""

import os
import stat
from collections.abc import Collection
from dataclasses import dataclass, field

from metier.definitions.contained_path import READ_FOLDER
from metier.tools.base import PathGuard
from metier.tools.path_patterns import PathPattern
from metier.tools.protected import is_closed
from metier.tools.scope import Scope

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

    def visit(self, folder: int, inside: str, depth: int) -> None:
        """`inside` is the path from the folder that the walk began in, with a slash at its end."""
        folders: list[str] = []
        with os.scandir(folder) as entries:
            for entry in entries:
                self.entries += 1
                if self.entries > MAX_ENTRIES:
                    return
                self._sort_in(entry, inside, folders)
        for name in sorted(folders) if depth < MAX_DEPTH else ():
            try:
                child = os.open(name, READ_FOLDER | os.O_NOFOLLOW, dir_fd=folder)
            except OSError:
                continue  # removed, replaced by a link or closed to us: there is nothing to list
            try:
                self.visit(child, f"{inside}{name}/", depth + 1)
            finally:
                os.close(child)

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
    is_complete: bool


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
    return Listing(walk.files, walk.entries <= MAX_ENTRIES)
