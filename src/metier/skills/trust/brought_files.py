"""The files of a folder that speak to an agent: which there are, when they changed, and what is in them."""

import hashlib
import json
import os
import stat
from collections.abc import Sequence
from pathlib import Path

from metier.dataclass import dataclass
from metier.definitions.files.contained_file import read_contained

_MOST_FILES = 2000
_MOST_BYTES = 32 * 1024 * 1024
_PASSED_OVER = frozenset({"node_modules", "__pycache__", ".venv"})
_REPOSITORIES = frozenset({".git", ".hg", ".svn", ".jj"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Brought:
    files: tuple[tuple[str, os.stat_result], ...]
    """Paths below the folder, sorted, each with what the system says of it; links are not followed."""
    nested: tuple[str, ...]
    """Folders that are repositories of their own."""
    is_complete: bool
    """There are not too many to look at all of them."""


def survey(workspace: Path, names: Sequence[str]) -> Brought:
    """Look at the named files and folders, and at all below them."""
    files: dict[str, os.stat_result] = {}
    waiting = [str(workspace / name) for name in names]
    tops = dict.fromkeys(name.partition("/")[0] for name in names if "/" in name)
    nested = [top for top in tops if any(os.path.lexists(workspace / top / each) for each in _REPOSITORIES)]
    start = len(str(workspace)) + 1
    while waiting and len(files) <= _MOST_FILES:
        path = waiting.pop()
        try:
            status = os.lstat(path)
            # Text, not paths: this is looked at whenever a command begins.
            children = os.listdir(path) if stat.S_ISDIR(status.st_mode) else None  # noqa: PTH208
        except OSError:
            continue
        if children is None:
            files[path[start:]] = status
            continue
        if not _REPOSITORIES.isdisjoint(children):
            nested.append(path[start:])
        waiting += [f"{path}/{name}" for name in children if name not in _PASSED_OVER | _REPOSITORIES]
    listed = tuple(sorted(files.items(), key=lambda item: item[0]))
    return Brought(files=listed, nested=tuple(nested), is_complete=not waiting)


def stamp_brought(brought: Brought) -> str:
    """The same as long as no file was written, without reading any."""
    rows = [[name, s.st_size, s.st_mtime_ns, s.st_ctime_ns, s.st_ino] for name, s in brought.files]
    return hashlib.blake2b(json.dumps(rows).encode(), digest_size=16).hexdigest()


def digest_brought(workspace: Path, brought: Brought) -> str:
    """The same as long as every file holds the same bytes and every link leads to the same place. Raises `OSError`."""
    left = _MOST_BYTES
    digest = hashlib.sha256()
    for name, status in brought.files:
        if stat.S_ISLNK(status.st_mode):
            content = os.fsencode((workspace / name).readlink())
        else:
            content = read_contained(workspace / name, within=workspace, limit=left)
        left -= len(content)
        if left < 0:
            raise OSError("there is too much to read")
        digest.update(json.dumps([name, len(content)]).encode() + b"\0" + content)
    return digest.hexdigest()
