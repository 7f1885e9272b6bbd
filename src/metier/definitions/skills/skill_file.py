"""Finds and reads the `SKILL.md` of a skill folder."""

import os
import re
from pathlib import Path

from msgspec import Struct

from metier.definitions.files.contained_path import read_contained
from metier.definitions.problems import Problem

FILE_NAME = "SKILL.md"
MAX_FILE_BYTES = 4 * 1024 * 1024
_MAX_LINK_BYTES = 1024
_STORED_LINK = re.compile(rb"\s*(?:\.{1,2}/)*(?:[^\s/:#]+/)+SKILL\.md\s*", re.IGNORECASE)


class FoundFile(Struct, frozen=True):
    path: Path
    problems: tuple[Problem, ...] = ()


def get_skill_file(folder: Path, *, strict: bool = False) -> FoundFile | Problem:
    """Return `SKILL.md`. If only its case differs, that is a warning, or an error in strict mode."""
    exact = folder / FILE_NAME
    if exact.is_file():
        return FoundFile(exact)
    if os.path.lexists(exact):
        return _not_a_file(exact)
    try:
        names = sorted(path.name for path in folder.iterdir() if path.name.lower() == FILE_NAME.lower())
    except OSError as error:
        message = f"The folder cannot be read: {error.strerror}"
        return Problem(severity="error", code="unreadable", message=message, file=str(folder))
    for name in names:
        if (folder / name).is_file():
            return FoundFile(folder / name, misnamed(folder / name, strict=strict))
    hint = f"Add a file {FILE_NAME!r} with the fields 'name' and 'description'"
    message = f"The folder has no {FILE_NAME!r}"
    return Problem(severity="error", code="no_skill_file", message=message, file=str(folder), line=1, hint=hint)


def find_stored_link(data: bytes, file: Path) -> Problem | None:
    """Report a symbolic link that git checked out as a text file with the path of another skill."""
    if len(data) > _MAX_LINK_BYTES or _STORED_LINK.fullmatch(data) is None:
        return None
    target = data.strip().decode("utf-8", "replace")
    message = f"The file is a symbolic link that was stored as text: {target!r}"
    hint = "Clone it with `git -c core.symlinks=true clone`, or use the skill that it leads to"
    return Problem(severity="error", code="link_as_text", message=message, file=str(file), line=1, hint=hint)


def misnamed(file: Path, *, strict: bool = False) -> tuple[Problem, ...]:
    """Report a file name whose case differs from `SKILL.md`, which other tools may not find."""
    if file.name == FILE_NAME:
        return ()
    message = f"The file is called {file.name!r}, not {FILE_NAME!r}"
    severity = "error" if strict else "warning"
    return (Problem(severity=severity, code="file_name", message=message, file=str(file), line=1),)


def read_skill_file(path: Path, *, limit: int, within: Path | None = None) -> bytes | Problem:
    """Return the bytes of the file. Links must not lead out of `within`, by default the file's folder."""
    try:
        data = read_contained(path, within=within or path.parent, limit=limit)
    except OSError as error:
        message = f"The file cannot be read: {error.strerror}"
        return Problem(severity="error", code="unreadable", message=message, file=str(path), line=1)
    if len(data) > limit:
        message = f"The file is larger than {limit} bytes"
        return Problem(severity="error", code="file_too_large", message=message, file=str(path), line=1)
    return data


def _not_a_file(path: Path) -> Problem:
    if path.is_dir():
        message, code = f"{FILE_NAME!r} is a folder", "not_a_file"
    elif path.is_symlink():
        message, code = f"{FILE_NAME!r} is a broken link", "dangling_link"
    else:
        message, code = f"{FILE_NAME!r} is not a plain file", "not_a_file"
    return Problem(severity="error", code=code, message=message, file=str(path), line=1)
