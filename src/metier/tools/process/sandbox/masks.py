"""The files of programs that must not be run inside a sandbox, by name. Looks at the disk; decides nothing."""

import os
from collections.abc import Iterable, Iterator
from pathlib import Path

from metier.tools.process.interpreter import base_interpreter

_FOLDERS = ("/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin", "/sbin", "/bin")
_MANY_IN_ONE = frozenset({"busybox", "toybox", "coreutils"})
"""One file that is many programs by its name: to close it would close them all."""
_SHELL = "/bin/bash"


def find_masked(names: Iterable[str], path: str) -> tuple[Path, ...]:
    """Every file that these names mean in `path` or the system's folders, with its other names in the same folder.

    The agent's own interpreter and the shell that reads approved lines stay: without them nothing runs.
    """
    needed = {Path(program).resolve() for program in (base_interpreter(), _SHELL)}
    folders = list(dict.fromkeys((*(entry for entry in path.split(os.pathsep) if entry.startswith("/")), *_FOLDERS)))
    found: dict[Path, None] = {}
    for name in sorted(names):
        for folder in folders:
            file = Path(folder, name)
            if not file.is_file():
                continue
            real = file.resolve()
            if real not in needed and real.name not in _MANY_IN_ONE:
                found |= dict.fromkeys(_find_links(real))
    return tuple(found)


def _find_links(file: Path) -> Iterator[Path]:
    """The file, and the hard links to it that stand beside it: a mount closes one name."""
    yield file
    status = file.stat()
    if status.st_nlink == 1:
        return
    with os.scandir(file.parent) as entries:
        for entry in entries:
            if entry.inode() == status.st_ino and entry.path != str(file):
                yield Path(entry.path)
