"""Rules for file names in a package. Pure: checks a list of paths before any file is written.

They combine the restrictions of all file systems, so that a package is the same on every machine: no file system may
treat two names as equal, or give a name a special meaning.
"""

import re
import unicodedata
from collections.abc import Iterable

from msgspec import Struct

from metier.errors import SkillRejected

# Common file systems allow at most 255 bytes in a name, and macOS 1,024 in a path.
_MAX_COMPONENT_BYTES = 255
_MAX_PATH_BYTES = 1_024
_FORBIDDEN = re.compile(r'[<>:"|?*\\\x00-\x1f\x7f]')
# Windows opens these devices in every folder, also with an ending, and takes superscripts for digits.
_RESERVED = re.compile(r"(?:con|prn|aux|nul|conin\$|conout\$|(?:com|lpt)[0-9¹²³])(?:\..*)?", re.IGNORECASE)
_COMPILED = (".pyc", ".pyo")

MEGABYTE = 1024 * 1024
MORE_FILES = "Name the folder of one skill with #folder, or allow more with --max-files"


def check_paths(paths: Iterable[str]) -> None:
    """Raise `SkillRejected` for the first path that is not allowed."""
    spelling: dict[str, str] = {}
    files: set[str] = set()
    folders: set[str] = set()
    for path in paths:
        check_path(path)
        parts = path.split("/")
        for depth in range(1, len(parts) + 1):
            _check_spelling("/".join(parts[:depth]), spelling)
        if path in files:
            raise SkillRejected(f"{path!r} stands twice in the package")
        files.add(path)
        folders.update("/".join(parts[:depth]) for depth in range(1, len(parts)))
    _check_repositories(files, folders)
    both = files & folders
    if both:
        raise SkillRejected(f"{min(both)!r} is both a file and a folder")


def _check_repositories(files: set[str], folders: set[str]) -> None:
    """Reject a folder that git treats as a bare repository: git would use its settings."""
    names = {path.casefold() for path in files | folders}
    for path in files:
        above, _, name = path.casefold().rpartition("/")
        beside = f"{above}/" if above else ""
        is_bare = {f"{beside}objects", f"{beside}refs"} <= names or f"{beside}commondir" in names
        if name == "head" and is_bare:
            raise SkillRejected(
                f"{above or '.'!r} is a repository of its own", hint="A package must not contain a repository"
            )


def check_path(path: str) -> None:
    if len(path.encode("utf-8", "surrogateescape")) > _MAX_PATH_BYTES:
        raise SkillRejected(f"The path {path[:60]!r}… is longer than {_MAX_PATH_BYTES} bytes")
    for part in path.split("/"):
        reason = _get_fault(part)
        if reason:
            raise SkillRejected(f"File name {path!r} is refused: {reason}", hint="Ask the author to rename the file")


def _check_spelling(path: str, spelling: dict[str, str]) -> None:
    # Folding can produce text that is not normalized, so it is normalized again.
    folded = unicodedata.normalize("NFC", unicodedata.normalize("NFC", path).casefold())
    known = spelling.setdefault(folded, path)
    if known != path:
        raise SkillRejected(
            f"{known!r} and {path!r} differ only in case or Unicode form",
            hint="Some file systems take them for one file; ask the author to rename one",
        )


def _get_fault(part: str) -> str:
    if part in ("", ".", ".."):
        return "it leaves its folder"
    faults = (
        (any("\ud800" <= char <= "\udfff" for char in part), "it is not UTF-8"),
        (len(part.encode("utf-8", "surrogateescape")) > _MAX_COMPONENT_BYTES, "a part of it is too long"),
        (_FORBIDDEN.search(part) is not None, "it holds a character that is not allowed"),
        (any(_is_invisible(char) for char in part), "it holds an invisible character"),
        (part.startswith("-"), "it looks like an option"),
        (part.startswith("~"), "it looks like a home folder"),
        (part[-1] in ". ", "it ends with a dot or a blank"),
        (_RESERVED.fullmatch(part) is not None, "it names a device"),
        (_is_git_folder(part), "it is where git keeps its own files"),
        (part.casefold() == "__pycache__" or part.casefold().endswith(_COMPILED), "compiled code cannot be reviewed"),
    )
    return next((reason for is_fault, reason in faults if is_fault), "")


def _is_invisible(char: str) -> bool:
    return unicodedata.category(char) in ("Cf", "Cc", "Zl", "Zp") or (char.isspace() and char != " ")


def _is_git_folder(part: str) -> bool:
    # `git~1` is the short name of `.git` on Windows.
    return unicodedata.normalize("NFKC", part).casefold() in (".git", "git~1")


class InstallLimits(Struct, frozen=True, kw_only=True):
    max_files: int = 2_000
    max_bytes: int = 50 * MEGABYTE
    """Limit for all files of the skill together."""
    max_file_bytes: int = 20 * MEGABYTE
    max_repository_bytes: int = 1024 * MEGABYTE
    """Download limit of git."""
    warn_free_bytes: int = 100 * MEGABYTE
    """Warn if less disk space than this is free."""
    min_free_bytes: int = 20 * MEGABYTE
    """Refuse an installation that would leave less than this."""
    timeout_seconds: float = 300.0
    """Timeout of each git command."""
    attempts: int = 3
