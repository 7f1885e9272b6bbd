"""Find and read the one file of a skill folder, and say what stands in the way."""

import os
from dataclasses import dataclass
from pathlib import Path

from metier.definitions.files.contained_file import read_contained
from metier.definitions.problems import Problem

FILE_NAME = "SKILL.md"
MAX_FILE_BYTES = 4 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class FoundFile:
    path: Path
    problems: tuple[Problem, ...] = ()


def find_skill_file(folder: Path) -> FoundFile | Problem:
    """`SKILL.md`, else the same word in another case, with a warning."""
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
            return FoundFile(folder / name, misnamed(folder / name))
    hint = f"Add a file {FILE_NAME!r} with the fields 'name' and 'description'"
    message = f"The folder has no {FILE_NAME!r}"
    return Problem(severity="error", code="no_skill_file", message=message, file=str(folder), line=1, hint=hint)


def misnamed(file: Path) -> tuple[Problem, ...]:
    """A warning where the file is found only by readers that ignore case."""
    if file.name == FILE_NAME:
        return ()
    message = f"The file is called {file.name!r}, not {FILE_NAME!r}"
    return (Problem(severity="warning", code="file_name", message=message, file=str(file), line=1),)


def read_skill_file(path: Path, *, limit: int, within: Path | None = None) -> bytes | Problem:
    """The bytes of the file. `within` is the folder that no link may lead out of; without it, the file's own."""
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
        message, code = f"{FILE_NAME!r} is a link to nothing", "dangling_link"
    else:
        message, code = f"{FILE_NAME!r} is not a plain file", "not_a_file"
    return Problem(severity="error", code=code, message=message, file=str(path), line=1)
