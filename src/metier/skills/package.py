"""A skill package: definition, source, and the files of its folder."""

import os
import stat
from contextlib import ExitStack
from pathlib import Path, PurePosixPath
from typing import Literal

from msgspec import Struct

from metier.definitions.skills.skill import SkillDefinition
from metier.errors import SkillError

type PackageSource = Literal["bundled", "user", "installed", "workspace", "directory"]
"""`bundled` with Metier, added to the home folder by the `user`, `installed` by `agent skill add`, in the `workspace`,
or in a `directory` given by `--skills-dir`.
"""

MAX_LISTED = 500
MAX_READ_BYTES = 2_000_000
_PASSED_OVER = frozenset({".git", "__pycache__", "node_modules", ".venv"})


class SkillPackage(Struct, frozen=True, kw_only=True):
    definition: SkillDefinition
    folder: Path
    source: PackageSource
    trusted_digest: str | None = None
    """Tree hash that the user trusted; only bytes with this hash may run."""
    commit: str | None = None
    """Full ID of the commit from which it was fetched."""
    is_withheld: bool = False
    """True if it came with an untrusted clone. It can be read, but its code is not run."""


class SkillFile(Struct, frozen=True):
    path: str
    """POSIX path relative to the skill's folder."""
    bytes: int


def list_files(folder: Path) -> tuple[SkillFile, ...]:
    """Return the regular files of a skill, sorted by path, without links and caches."""
    found: list[SkillFile] = []
    for parent, folders, names in os.walk(folder):
        folders[:] = sorted(name for name in folders if name not in _PASSED_OVER)
        for name in sorted(names):
            path = Path(parent) / name
            status = path.lstat()
            if stat.S_ISREG(status.st_mode):
                found.append(SkillFile(path.relative_to(folder).as_posix(), status.st_size))
        if len(found) >= MAX_LISTED:
            break
    return tuple(sorted(found[:MAX_LISTED], key=lambda file: file.path))


def read_file(folder: Path, relative: str) -> bytes:
    """Return the bytes of a file, at most `MAX_READ_BYTES`.

    Raises `SkillError` for a path that is absolute, leaves the folder, follows a link, or is not a regular file.
    """
    parts = PurePosixPath(relative).parts
    if not parts or relative.startswith("/") or ".." in parts or "\\" in relative or "\0" in relative:
        raise SkillError(f"Path {relative!r} is outside the skill", hint="Use a path relative to the skill")
    try:
        with ExitStack() as opened:
            at = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            opened.callback(os.close, at)
            for part in parts:
                # One component at a time below an open folder, so that the kernel rejects a link anywhere in the path.
                at = os.open(part, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=at)
                opened.callback(os.close, at)
            if not stat.S_ISREG(os.fstat(at).st_mode):
                raise SkillError(f"{relative!r} is not a file of the skill")
            # Duplicated, because `fdopen` closes its descriptor and the stack closes this one again.
            with os.fdopen(os.dup(at), "rb") as file:
                return file.read(MAX_READ_BYTES)
    except OSError as error:
        raise SkillError(f"{relative!r} is not a file of the skill") from error
