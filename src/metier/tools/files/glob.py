"""`Glob`: the files whose path matches a pattern, the newest first. `Grep` uses its patterns and its walk.

A pattern has `*`, `?`, `[a-z]` and `{a,b}` within a name, and `**` for any number of folders. The walk opens folders by
descriptor, never follows links, and stops at fixed limits.
"""

import os
import re
import stat
from collections.abc import Collection
from dataclasses import dataclass, field
from fnmatch import translate
from itertools import islice

from anyio.to_thread import run_sync
from msgspec import Struct
from pydantic import JsonValue

from metier.definitions.files.contained_path import READ_FOLDER
from metier.errors import ToolFailed
from metier.prompts.texts import build_parameters, load_tool_text
from metier.tools.base import PathGuard, ToolContext, ToolInfo, ToolResult
from metier.tools.files.scope import FolderTool, Scope
from metier.tools.protected import is_closed

MAX_PATTERN_CHARACTERS = 512
MAX_PARTS = 32
MAX_ALTERNATIVES = 64
_BRACES = re.compile(r"\{([^{}]*)\}")


class PathPattern:
    """A pattern of paths. Without a slash it matches names in any folder, with one it matches whole paths."""

    def __init__(self, text: str) -> None:
        """Raises `ToolFailed` for a pattern that leaves the folder or is too long."""
        _check(text)
        plain = text.removeprefix("./")
        if plain.endswith("/"):
            plain += "**"
        if "/" not in plain:
            plain = f"**/{plain}"
        self._alternatives = [_split(one) for one in _expand(plain)]
        self._compiled = [[None if part == "**" else _compile(part) for part in one] for one in self._alternatives]

    @property
    def names(self) -> frozenset[str]:
        """The parts without wildcards: a folder that is usually skipped is searched if it is named."""
        return frozenset(part for one in self._alternatives for part in one if not re.search(r"[*?\[]", part))

    def matches(self, path: str) -> bool:
        parts = path.split("/")
        return any(_matches(pattern, parts) for pattern in self._compiled)


def _check(text: str) -> None:
    reason = ""
    if not text or len(text) > MAX_PATTERN_CHARACTERS:
        reason = f"must have 1 to {MAX_PATTERN_CHARACTERS} characters"
    elif text.startswith(("/", "~")) or ".." in text.split("/") or "\\" in text or "\0" in text:
        reason = "must be relative to the folder, without '..' and backslashes"
    if reason:
        raise ToolFailed(f"Pattern {text[:100]!r} {reason}", code="invalid_input")


def _expand(text: str) -> list[str]:
    """Expand `a.{b,c}` to `a.b` and `a.c`. Braces that are not closed stay as they are."""
    done: list[str] = []
    todo = [text]
    while todo:
        one = todo.pop(0)
        found = _BRACES.search(one)
        if found is None:
            done.append(one)
        else:
            todo += [one[: found.start()] + choice + one[found.end() :] for choice in found.group(1).split(",")]
        # Each pair of braces multiplies their number.
        if len(done) + len(todo) > MAX_ALTERNATIVES:
            raise ToolFailed(f"Pattern {text[:100]!r} has too many alternatives", code="invalid_input")
    return done


def _split(text: str) -> list[str]:
    parts: list[str] = []
    for part in text.split("/"):
        if part not in {"", "."} and not (part == "**" and parts[-1:] == ["**"]):
            parts.append(part)
    if len(parts) > MAX_PARTS:
        raise ToolFailed(f"Pattern {text[:100]!r} has more than {MAX_PARTS} parts", code="invalid_input")
    return parts


def _compile(part: str) -> re.Pattern[str]:
    """Compile a part. The expressions of `fnmatch` don't backtrack, so matching takes linear time."""
    # `fnmatch` only knows `!` for the characters that don't match.
    return re.compile(translate(part.replace("[^", "[!")))


def _matches(pattern: list[re.Pattern[str] | None], parts: list[str]) -> bool:
    """Track all possible positions in the pattern at once: backtracking over many `**` would take exponential time."""
    places = _skip({0}, pattern)
    for part in parts:
        reached: set[int] = set()
        for place in places:
            if place == len(pattern):
                continue
            step = pattern[place]
            if step is None:
                reached.add(place)
            elif step.match(part):
                reached.add(place + 1)
        places = _skip(reached, pattern)
        if not places:
            return False
    return len(pattern) in places


def _skip(places: set[int], pattern: list[re.Pattern[str] | None]) -> set[int]:
    """Add the positions after `**`, which also matches no folder. Two `**` never follow each other."""
    return places | {place + 1 for place in places if place < len(pattern) and pattern[place] is None}


PASSED_OVER = frozenset(
    {
        ".git", ".hg", ".svn", "node_modules", ".venv", "venv", "__pycache__", ".tox", ".nox", ".mypy_cache",
        ".ruff_cache", ".pytest_cache",
    }
)  # fmt: skip
"""Folders with generated or downloaded files, which are skipped unless a pattern names them."""
MAX_ENTRIES = 200_000
MAX_DEPTH = 64


class FoundFile(Struct, frozen=True):
    path: str
    """Relative to the workspace, or absolute in another root."""
    modified_ns: int
    size: int


@dataclass(slots=True)
class _Walk:
    pattern: PathPattern | None
    passed_over: frozenset[str]
    skip: Collection[str]
    """Folders to skip, in the form of `FoundFile.path`."""
    prefix: str
    files: list[FoundFile] = field(default_factory=list[FoundFile])
    entries: int = 0
    stopped_in: str | None = None
    too_deep: str | None = None

    def visit(self, folder: int, inside: str, depth: int) -> None:
        """Walk an open folder. `inside` is its path relative to the start of the walk, with a final slash."""
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
        # Sorted, so that a walk that reaches the limit stops at the same place every time.
        for name in sorted(folders):
            if self.stopped_in is not None:
                return
            try:
                # By descriptor: a folder that was replaced by a link since `scandir` must not lead elsewhere.
                child = os.open(name, READ_FOLDER | os.O_NOFOLLOW, dir_fd=folder)
            except OSError:
                continue  # removed, replaced by a link, or not readable
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
                # `is_closed` is slow, so it is called only for paths that can match; a walk sees many others.
                is_own = ".agent" in shown.lower() and is_closed(shown)
                if entry.name not in self.passed_over and shown not in self.skip and not is_own:
                    folders.append(entry.name)
            elif self.pattern is None or self.pattern.matches(path):
                status = entry.stat(follow_symlinks=False)
                if stat.S_ISREG(status.st_mode):
                    self.files.append(FoundFile(f"{self.prefix}{path}", status.st_mtime_ns, status.st_size))
        except FileNotFoundError:
            return


class Listing(Struct, frozen=True):
    files: list[FoundFile]
    """Sorted by path."""
    stopped_in: str | None = None
    """The folder in which the walk reached the limit of entries; None if it didn't."""
    too_deep: str | None = None
    """The first folder that was skipped because it is nested too deeply."""

    @property
    def is_complete(self) -> bool:
        return self.stopped_in is None and self.too_deep is None


def describe_stop(listing: Listing) -> str:
    """Describe where an incomplete walk stopped, and how to continue."""
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
    """List the files below a folder that match. Raises `ToolFailed` if the folder is missing or outside the scope."""
    named = pattern.names if pattern else frozenset[str]()
    with scope.open_folder(folder, guard=guard) as opened:
        shown = scope.canonical(folder)
        prefix = "" if shown == "." else f"{shown}/"
        walk = _Walk(pattern=pattern, passed_over=PASSED_OVER - named, skip=skip, prefix=prefix)
        walk.visit(opened.descriptor, "", 0)
    walk.files.sort(key=lambda file: file.path.split("/"))
    return Listing(walk.files, stopped_in=walk.stopped_in, too_deep=walk.too_deep)


MAX_FILES = 200
_MAX_JUDGED = 5_000
"""Maximum number of the newest files that are checked with the rules."""


class Glob(FolderTool):
    info = ToolInfo(
        id="builtin:Glob",
        name="Glob",
        description=load_tool_text("Glob").description,
        category="glob",
        input_schema=build_parameters("Glob", {"pattern": "string", "path": "string"}, required=("pattern",)),
        output_schema={"type": "string"},
        risk="low",
        effect="read",
    )

    async def execute(self, arguments: dict[str, JsonValue], context: ToolContext) -> ToolResult:
        pattern = PathPattern(str(arguments["pattern"]))
        return ToolResult(ok=True, output=await run_sync(self._find, self.get_path(arguments), pattern, context.paths))

    def _find(self, folder: str, pattern: PathPattern, guard: PathGuard) -> str:
        listing = list_files(self._scope, folder, pattern, guard=guard, skip=self._skip)
        newest = sorted(listing.files, key=lambda file: -file.modified_ns)
        open_to_it = (file.path for file in newest[:_MAX_JUDGED] if not guard.hides(file.path))
        lines = list(islice(open_to_it, MAX_FILES))
        if len(newest) > MAX_FILES:
            lines.append(
                f"[Stopped at the limit of {MAX_FILES} files: the newest {len(lines)} of {len(newest)} that match are "
                "shown. Narrow 'pattern', or name a folder by 'path', to see the others]"
            )
        if not listing.is_complete:
            lines.append(describe_stop(listing))
        return "\n".join(lines) or "No file matches"
