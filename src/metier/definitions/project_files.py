"""Read project instructions: `AGENTS.md` (else `CLAUDE.md`, `GEMINI.md`) with the files that it imports.

Reads and checks only; `context.outside_text` renders what is found, and the runtime decides whose text it is.
"""

import hashlib
import os
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from msgspec import Struct

from metier.definitions.files.contained_path import is_absent, read_contained
from metier.definitions.problems import Problem

NAMES = ("AGENTS.md", "CLAUDE.md", "GEMINI.md")
"""The first one that a folder has is read."""
PERSONAL = Path(".agent/AGENTS.md")
"""Below the home folder: what a user wants in every project."""
MAX_FILE_BYTES = 1_000_000
MAX_CHARACTERS = 20_000
"""Of one file with its imports. Two files at the start of a run fit into their layer whole."""
MAX_DEPTH = 5
MAX_IMPORTS = 30
IMPORTED = frozenset({".md", ".markdown", ".mdx", ".mdc", ".txt", ".rst", ".adoc"})
"""Only documents are imported: an import line cannot put `.env` or a key into a prompt."""

_IMPORT = re.compile(r"[ \t]*(?:[-*][ \t]+)?@(\S+)[ \t]*")
_FENCE = re.compile(r"[ ]{0,3}(```+|~~~+)")
_PASSED_OVER = frozenset({"node_modules", "vendor", "site-packages", "__pycache__", "venv"})
"""Folders of other projects' files. Hidden folders are passed over too."""


class ProjectFile(Struct, frozen=True, kw_only=True):
    path: str
    """As it is shown: relative to the workspace, or below `~`."""
    text: str
    """With imports in place, cleaned and capped."""
    sha256: str
    """Of its own bytes and of those of every import, in order."""
    imports: tuple[str, ...] = ()
    left_out: int = 0
    """Characters beyond the cap."""
    is_own: bool = True
    """The text of the user, or of a project that the user trusts."""
    problems: tuple[Problem, ...] = ()


type Clean = Callable[[str], str]
type Deny = Callable[[str], str]
"""Why a rule keeps a file of the workspace from being read, by its path; empty if none does."""


def allow_all(_path: str) -> str:
    """A `Deny` without rules."""
    return ""


@dataclass(slots=True, kw_only=True)
class _Reading:
    """What reading one file with its imports came to so far."""

    root: Path
    shown: str
    """What stands before a path below `root` when it is shown."""
    deny: Deny
    read: list[bytes] = field(default_factory=list[bytes])
    imports: list[str] = field(default_factory=list[str])
    problems: list[Problem] = field(default_factory=list[Problem])

    def show(self, file: Path) -> str:
        return f"{self.shown}{Path(os.path.relpath(file, self.root)).as_posix()}"

    def warn(self, message: str, file: Path, *, line: int = 1, hint: str = "") -> None:
        self.problems.append(
            Problem(
                severity="warning", code="project_file", message=message, file=self.show(file), line=line, hint=hint
            )
        )


def load_project_file(
    folder: Path, *, within: Path, clean: Clean, is_own: bool = True, deny: Deny = allow_all
) -> ProjectFile | None:
    """The instructions of one folder of a workspace; None where it has none."""
    for name in NAMES:
        file = folder / name
        if not is_absent(file) and not file.is_dir():
            return _load(file, _Reading(root=within, shown="", deny=deny), clean, is_own=is_own)
    return None


def load_personal_file(home: Path, *, clean: Clean) -> ProjectFile | None:
    """What the person wants in every project: `~/.agent/AGENTS.md`."""
    file = home / PERSONAL
    if is_absent(file):
        return None
    reading = _Reading(root=file.parent, shown=f"~/{PERSONAL.parent}/", deny=allow_all)
    return _load(file, reading, clean, is_own=True)


def load_nearby_files(
    path: str, *, workspace: Path, clean: Clean, is_own: bool, deny: Deny = allow_all
) -> tuple[ProjectFile, ...]:
    """The instructions of the folders between the workspace and a file in it, nearest last; not those of the root.

    A repository inside the workspace, and what lies in it, is the text of its author.
    """
    target = Path(os.path.normpath(workspace / path))
    if not target.is_relative_to(workspace):
        return ()
    parts = target.relative_to(workspace).parts if target.is_dir() else target.relative_to(workspace).parts[:-1]
    found: list[ProjectFile] = []
    folder = workspace
    for part in parts:
        if part.startswith(".") or part in _PASSED_OVER:
            break
        folder /= part
        is_own = is_own and not os.path.lexists(folder / ".git")
        if (file := load_project_file(folder, within=workspace, clean=clean, is_own=is_own, deny=deny)) is not None:
            found.append(file)
    return tuple(found)


def _load(file: Path, reading: _Reading, clean: Clean, *, is_own: bool) -> ProjectFile | None:
    text = _read(file, reading, line=1)
    whole = clean("\n".join(_expand(text, file, reading, above=(file,)))).strip() if text is not None else ""
    if not whole and not reading.problems:
        return None
    left_out = max(0, len(whole) - MAX_CHARACTERS)
    if left_out:
        whole = f"{whole[:MAX_CHARACTERS]}\n[{left_out} characters of {reading.show(file)} are left out]"
        hint = f"At most {MAX_CHARACTERS} characters of it are used; shorten it, or make a skill of the rest"
        reading.warn(f"{left_out} characters are left out", file, hint=hint)
    return ProjectFile(
        path=reading.show(file),
        text=whole,
        sha256=hashlib.sha256(b"".join(reading.read)).hexdigest(),
        imports=tuple(reading.imports),
        left_out=left_out,
        is_own=is_own,
        problems=tuple(reading.problems),
    )


def _read(file: Path, reading: _Reading, *, line: int) -> str | None:
    """None, and a warning, for a file that cannot be used: it may be written for another program."""
    if denied := _get_denial(file, reading):
        reading.warn(f"It is not read: {denied}", file, line=line)
        return None
    try:
        data = read_contained(file, within=reading.root, limit=MAX_FILE_BYTES)
    except OSError as error:
        reading.warn(f"It cannot be read: {error.strerror}", file, line=line)
        return None
    if len(data) > MAX_FILE_BYTES:
        reading.warn(f"It is larger than {MAX_FILE_BYTES} bytes and is not used", file, line=line)
        return None
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError:
        reading.warn("It is not UTF-8 and is not used", file, line=line)
        return None
    reading.read.append(data)
    return text


def _get_denial(file: Path, reading: _Reading) -> str:
    """By its name, or by the name of the file that its links lead to."""
    real = os.path.relpath(file.resolve(), reading.root.resolve())
    paths = dict.fromkeys((os.path.relpath(file, reading.root), real))
    return next((denied for path in paths if (denied := reading.deny(path))), "")


def _expand(text: str, file: Path, reading: _Reading, *, above: tuple[Path, ...]) -> Iterator[str]:
    """The lines of a file, each import line replaced by the file that it names; code blocks are left alone."""
    fence = ""
    for number, line in enumerate(text.splitlines(), start=1):
        if (mark := _FENCE.match(line)) is not None:
            fence = "" if fence and mark[1].startswith(fence) else fence or mark[1]
        named = _IMPORT.fullmatch(line) if not fence else None
        imported = _find_import(named[1], file, reading, line=number, above=above) if named is not None else None
        body = _read(imported, reading, line=number) if imported is not None else None
        if imported is None or body is None:
            yield line
            continue
        reading.imports.append(reading.show(imported))
        yield from _expand(body, imported, reading, above=(*above, imported))


def _find_import(name: str, file: Path, reading: _Reading, *, line: int, above: tuple[Path, ...]) -> Path | None:
    """The file that an import line names; None, and a warning where it looks like an import, for what is not used."""
    if Path(name).suffix.lower() not in IMPORTED:
        return None  # "@name" is a mention, not an import
    target = Path(os.path.normpath(file.parent / name))
    wrong = ""
    if name.startswith(("/", "~")) or not target.is_relative_to(reading.root):
        wrong = "lies outside of the folder"
    elif target in above:
        wrong = "imports itself"
    elif len(above) > MAX_DEPTH or len(reading.imports) >= MAX_IMPORTS:
        wrong = f"is too deep or one too many: at most {MAX_DEPTH} levels and {MAX_IMPORTS} imports are followed"
    if wrong:
        reading.warn(f"The import {name!r} is not followed: it {wrong}", file, line=line)
        return None
    return target
