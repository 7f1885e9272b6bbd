"""The files of programs that must not be run inside a sandbox, by name. Looks at the disk; decides nothing."""

import functools
import os
from collections.abc import Iterable, Iterator
from pathlib import Path

from metier.tools.process.interpreter import base_interpreter

_FOLDERS = ("/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin", "/sbin", "/bin")
_PACKAGES = ("/usr/lib", "/usr/lib64", "/usr/libexec", "/usr/local", "/opt")
"""Where packages keep programs of their own, in folders called like one of these, at most two folders further down:
the second Java, the client behind a wrapper, the `git` that git starts itself."""
_PROGRAMS = frozenset({"bin", "sbin", "libexec", "git-core"})
_MANY_IN_ONE = frozenset({"busybox", "toybox", "coreutils"})
"""One file that is many programs by its name: to close it would close them all."""
_NEEDED = ("/bin/bash", "/bin/sh", "/bin/ls")
"""What ordinary work cannot do without: one that is many programs is closed where none of these is it."""
_SHELL = "/bin/bash"


def find_masked(names: Iterable[str], path: str) -> tuple[Path, ...]:
    """Every file that these names mean in `path`, the system's folders or those of packages, with its other names.

    The agent's own interpreter and the shell that reads approved lines stay: without them nothing runs. A program that
    is many in one goes with them, where the system does not consist of it.
    """
    needed = {Path(program).resolve() for program in (base_interpreter(), _SHELL)}
    own = (entry for entry in path.split(os.pathsep) if entry.startswith("/"))
    folders = list(dict.fromkeys((*own, *_FOLDERS, *_list_package_folders())))
    found: dict[Path, None] = {}
    for name in sorted(names):
        for real in _find_files(name, folders):
            if real not in needed and real.name not in _MANY_IN_ONE:
                found |= dict.fromkeys(_find_links(real, folders))
    for name in _MANY_IN_ONE if found else ():
        if not any(Path(program).resolve().name == name for program in _NEEDED):
            found |= dict.fromkeys(_find_files(name, _FOLDERS))
    return tuple(found)


def _find_files(name: str, folders: Iterable[str]) -> Iterator[Path]:
    for folder in folders:
        file = Path(folder, name)
        if file.is_file():
            yield file.resolve()


@functools.cache
def _list_package_folders() -> tuple[str, ...]:
    """Once in a process: installing a package does not happen between two commands of a run."""
    found: list[str] = []
    inner = list(_PACKAGES)
    for _ in range(3):
        folders = [entry for place in inner for entry in _list_folders(place)]
        found += [path for name, path in folders if name in _PROGRAMS]
        inner = [path for name, path in folders if name not in _PROGRAMS]
    return (*(place for place in _PACKAGES if Path(place).name in _PROGRAMS), *found)


def _list_folders(place: str) -> list[tuple[str, str]]:
    try:
        with os.scandir(place) as entries:
            return [(entry.name, entry.path) for entry in entries if entry.is_dir(follow_symlinks=False)]
    except OSError:
        return []


def _find_links(file: Path, folders: Iterable[str]) -> Iterator[Path]:
    """The file, and the hard links to it in folders of programs: a mount closes one name."""
    yield file
    status = file.stat()
    missing = status.st_nlink - 1
    for folder in dict.fromkeys((str(file.parent), *folders)):
        if not missing:
            return
        for path in _list_names(folder, status.st_ino):
            if path != file and path.parent.resolve() == path.parent and path.stat().st_dev == status.st_dev:
                missing -= 1
                yield path


def _list_names(folder: str, inode: int) -> list[Path]:
    try:
        with os.scandir(folder) as entries:
            return [Path(entry.path) for entry in entries if entry.inode() == inode and not entry.is_symlink()]
    except OSError:
        return []
