"""Project instructions: `AGENTS.md` (else `CLAUDE.md` or `GEMINI.md`) with imported files.

Only reads and checks them: `context.outside_text` renders them, and the runtime decides if they are trusted.
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
"""In order of precedence: only one file per folder is read."""
PERSONAL = Path(".agent/AGENTS.md")
"""The user's instructions for every project, relative to the home folder."""
MAX_FILE_BYTES = 1_000_000
MAX_CHARACTERS = 20_000
"""Limit per file including imports. The prompt layer has room for two files of this size."""
MAX_DEPTH = 5
MAX_IMPORTS = 30
IMPORTED = frozenset({".md", ".markdown", ".mdx", ".mdc", ".txt", ".rst", ".adoc"})
"""Only documents can be imported: an import line must not put `.env` or a key into a prompt."""

_IMPORT = re.compile(r"[ \t]*(?:[-*][ \t]+)?@(\S+)[ \t]*")
_FENCE = re.compile(r"[ ]{0,3}(```+|~~~+)")
_PASSED_OVER = frozenset({"node_modules", "vendor", "site-packages", "__pycache__", "venv"})
"""Folders with files of other projects. Hidden folders are also skipped."""


class ProjectFile(Struct, frozen=True, kw_only=True):
    path: str
    """Path for display: relative to the workspace, or below `~`."""
    text: str
    """Content with imports, sanitized and truncated."""
    sha256: str
    """Digest of the bytes of the file and of every import, in order."""
    imports: tuple[str, ...] = ()
    left_out: int = 0
    """Number of truncated characters."""
    is_own: bool = True
    """True for text of the user, or of a trusted project."""
    problems: tuple[Problem, ...] = ()


type Clean = Callable[[str], str]
type Deny = Callable[[str], str]
"""Returns the reason why a rule denies reading a file, or an empty string if it may be read."""


def allow_all(_path: str) -> str:
    """Allow reading every file."""
    return ""


@dataclass(slots=True, kw_only=True)
class _Reading:
    """State of reading one file with its imports."""

    root: Path
    shown: str
    """Prefix of displayed paths below `root`."""
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
    """Load the instructions of one folder of a workspace, or return None if it has none."""
    for name in NAMES:
        file = folder / name
        if not is_absent(file) and not file.is_dir():
            return _load(file, _Reading(root=within, shown="", deny=deny), clean, is_own=is_own)
    return None


def load_personal_file(home: Path, *, clean: Clean) -> ProjectFile | None:
    """Return the user's own instructions: `~/.agent/AGENTS.md`."""
    file = home / PERSONAL
    if is_absent(file):
        return None
    reading = _Reading(root=file.parent, shown=f"~/{PERSONAL.parent}/", deny=allow_all)
    return _load(file, reading, clean, is_own=True)


def load_nearby_files(
    path: str, *, workspace: Path, clean: Clean, is_own: bool, deny: Deny = allow_all
) -> tuple[ProjectFile, ...]:
    """Load the instructions of the folders between the workspace root (excluded) and a file, outermost first.

    Files of a repository nested in the workspace are not the user's own.
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
    """Read a file. If it is unusable, add a warning and return None."""
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
        # Some editors on Windows start a file with a byte order mark.
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError:
        reading.warn("It is not UTF-8 and is not used", file, line=line)
        return None
    reading.read.append(data)
    return text


def _get_denial(file: Path, reading: _Reading) -> str:
    """Return why the file, or the target of its links, must not be read."""
    real = os.path.relpath(file.resolve(), reading.root.resolve())
    paths = dict.fromkeys((os.path.relpath(file, reading.root), real))
    return next((denied for path in paths if (denied := reading.deny(path))), "")


def _expand(text: str, file: Path, reading: _Reading, *, above: tuple[Path, ...]) -> Iterator[str]:
    """Replace each import line by the content of its file. Code blocks stay unchanged."""
    fence = ""
    for number, line in enumerate(text.splitlines(), start=1):
        if (mark := _FENCE.match(line)) is not None:
            # In CommonMark, a fence is closed by one of the same character that is at least as long.
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
    """Find the file of an import line. Warn if the line looks like an import but is not followed."""
    if Path(name).suffix.lower() not in IMPORTED:
        return None  # "@name" is a mention, not an import
    # As text: where links lead is checked when the file is read.
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
