"""A walk that finds definition files below a folder by name, with few system calls. It opens no files."""

import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from msgspec import Struct

from metier.definitions.files.contained_path import is_absent, is_contained
from metier.definitions.problems import Problem

MAX_DEPTH = 12
MAX_DEPTH_EVERYWHERE = 64
_NEVER = frozenset({"node_modules", "__pycache__"})
_INSIDE_A_SKILL = frozenset({"references", "assets", "scripts", "toolsets", "evals", "templates", "examples", "tests"})
"""Folders inside a skill whose files belong to that skill, even if they look like a skill."""


class FoundDefinition(Struct, frozen=True):
    id: str
    """Path of the folder under the root, with slashes; the root's own name for a file in the root."""
    path: str
    stat: os.stat_result
    within: Path
    """Folder that links must not leave."""


@dataclass
class Walk:
    """A walk over one root. Iterate over it, then read `problems`."""

    root: Path
    file_name: str
    """Compared without regard to case; an exact match takes precedence."""
    within: Path | None = None
    """Links to folders are followed if their target is below this folder, by default the root."""
    everywhere: bool = False
    """Include dot folders and the parts of skills: for validation, not for loading."""
    folders: list[tuple[str, os.stat_result]] | None = None
    """If set, every listed folder is added with its status from before the listing."""
    has_links: bool = False
    """True if the result depends on a link, whose target can change without a change in these folders."""
    problems: list[Problem] = field(default_factory=list[Problem])
    _entered: set[str] = field(default_factory=set[str])

    def __iter__(self) -> Iterator[FoundDefinition]:
        root = os.path.abspath(self.root)  # noqa: PTH100 - links stay as written; only loops are resolved
        if is_absent(root):  # most of the searched folders don't exist
            return
        self._entered.add(os.path.realpath(root))
        if self.within is not None and not is_contained(root, base=self._base):
            self._report("link_out", "The folder is a link out of the project and is not read", root)
            return
        yield from self._folder(root, "", 0)

    @cached_property
    def _wanted(self) -> str:
        return self.file_name.lower()

    @cached_property
    def _base(self) -> str:
        return os.path.realpath(self.within or self.root)

    def _folder(self, path: str, id: str, depth: int) -> Iterator[FoundDefinition]:  # noqa: A002
        try:
            if self.folders is not None:
                # Before the listing: a later change then shows in the time of the folder.
                self.folders.append((path, os.stat(path)))  # noqa: PTH116 - text, not a Path: speed
            with os.scandir(path) as entries:
                listed = list(entries)
        except OSError as error:
            if depth or not isinstance(error, FileNotFoundError):
                self._report("unreadable", f"The folder cannot be read: {error.strerror}", path)
            return
        found = self._definition(listed, id or os.path.basename(path))  # noqa: PTH119 - text, not a Path: speed
        if found is not None:
            yield found
        self.has_links |= any(entry.is_symlink() for entry in listed if found is None or entry.path == found.path)
        folders = self._folders(listed, inside=found is not None)
        most = MAX_DEPTH_EVERYWHERE if self.everywhere else MAX_DEPTH
        if folders and depth >= most:
            self._report("too_deep", f"Folders deeper than {most} levels are not read", path)
            return
        for entry in sorted(folders, key=_name):
            if not entry.is_symlink() or self._may_enter(entry):
                yield from self._folder(entry.path, f"{id}/{entry.name}" if id else entry.name, depth + 1)

    def _definition(self, listed: list[os.DirEntry[str]], id: str) -> FoundDefinition | None:  # noqa: A002
        wanted = self._wanted
        # The length first, because nearly all entries differ in it and comparing it costs nothing.
        named = [entry for entry in listed if len(entry.name) == len(wanted) and entry.name.lower() == wanted]
        for entry in sorted(named, key=_name):
            try:
                stat = entry.stat()
            except OSError:
                self._report("dangling_link", f"{entry.name!r} is a broken link", entry.path)
                continue
            if entry.is_file():
                return FoundDefinition(id, entry.path, stat, self.within or self.root)
            self._report("not_a_file", f"{entry.name!r} is not a file", entry.path)
        return None

    def _folders(self, listed: list[os.DirEntry[str]], *, inside: bool) -> list[os.DirEntry[str]]:
        return [
            entry
            for entry in listed
            # The listing already has the type of most entries, so this needs no further system call.
            if entry.is_dir(follow_symlinks=not inside)
            and not self._is_left_out(entry.name, inside=inside)
            and entry.name.lower() != self._wanted
        ]

    def _is_left_out(self, name: str, *, inside: bool) -> bool:
        if self.everywhere:
            return name == ".git"
        return name[0] == "." or name in _NEVER or (inside and name in _INSIDE_A_SKILL)

    def _may_enter(self, link: os.DirEntry[str]) -> bool:
        """Return True if a linked folder was not visited yet and does not contain the walk's own path."""
        target = os.path.realpath(link.path)
        if not is_contained(target, base=self._base):
            self._report("link_out", f"Link {link.name!r} leads out of the project and is not followed", link.path)
            return False
        here = os.path.realpath(os.path.dirname(link.path))  # noqa: PTH120 - text, not a Path: speed
        if target in self._entered or f"{here}/".startswith(f"{target}/"):
            self._report("link_loop", f"Link {link.name!r} leads to a folder that is read already", link.path)
            return False
        self._entered.add(target)
        return True

    def _report(self, code: str, message: str, path: str) -> None:
        severity = "error" if code in ("dangling_link", "link_out", "not_a_file", "unreadable") else "warning"
        self.problems.append(Problem(severity=severity, code=code, message=message, file=path, line=1))


def _name(entry: os.DirEntry[str]) -> str:
    return entry.name


def report_duplicate(found: FoundDefinition, first: str) -> Problem:
    message = f"ID {found.id!r} is the same as that of '{first}' where case does not count"
    hint = "Rename one of the folders"
    return Problem(severity="error", code="duplicate_id", message=message, file=found.path, line=1, hint=hint)
