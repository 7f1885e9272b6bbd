"""Did this folder come from elsewhere? Told from what version control wrote into it on this machine; runs no program.

What a clone contains is its author's; the `.git` beside it is written by the person's own git, and names where the
files came from. No file of a git repository can be called `.git`. It can be called `.hg`, and the other way round: so
every kind of version control is asked for itself, and one that says "from elsewhere" is enough.
"""

import hashlib
import os
import re
import stat
from collections.abc import Callable, Iterable
from pathlib import Path

from metier.lazy_regex import lazy_regex
from metier.skills.git.records import find_git_folder, find_git_origin, read_git_config

_REMOTE = lazy_regex(r'^\s*\[\s*remote\s+"(?P<name>[^"]*)"', re.MULTILINE | re.IGNORECASE)
_URL = lazy_regex(r"^\s*(?:url|default)\s*=\s*(?P<url>\S.*?)\s*$", re.MULTILINE | re.IGNORECASE)
_HG_SOURCE = lazy_regex(r"^\s*(?:default|%include)\b", re.MULTILINE)
_HG_FETCHED = lazy_regex(r"\b(?:pull|unbundle|serve|import)\b")
_MOST_BYTES = 1 << 20
_SECOND_NS = 1_000_000_000
_UNPACKED_AFTER_NS = 2 * _SECOND_NS
_ORIGIN_MARKS = ("user.xdg.origin.url", "com.apple.quarantine")
"""What browsers and archive programs write beside a file that was downloaded."""

type _Look = Callable[[Path], str | None]
"""What one kind of version control says of a folder: nothing, "" for one that was made here, else where it is from."""


def find_origin(workspace: Path, *, nested: Iterable[str] = ()) -> str:
    """Where the files come from, in words; empty for a folder that was made here.

    `nested` are folders in it that may be repositories of their own, such as a submodule with skills. What cannot be
    read counts as coming from elsewhere.
    """
    folders = (workspace.resolve(), *workspace.resolve().parents)
    looks: tuple[_Look, ...] = (_look_for_svn, _look_for_jj, _look_for_hg, find_git_origin)
    said = (next((found for folder in folders if (found := look(folder)) is not None), "") for look in looks)
    inside = (look(workspace / name) or "" for name in nested for look in looks)
    return next(filter(None, (*said, *inside)), "")


def find_unpacked(files: Iterable[tuple[str, os.stat_result]], workspace: Path) -> str:
    """In words, a file that an archive or a browser put there; empty where none of them shows it.

    An archive keeps times in whole seconds and gives them to what it unpacks; a file that a person saves has the time
    of that moment, with its fractions, also after it was copied or moved.
    """
    for name, status in files:
        if not stat.S_ISREG(status.st_mode):
            continue
        is_whole = status.st_mtime_ns % _SECOND_NS == 0 and status.st_ctime_ns % _SECOND_NS != 0
        if is_whole and status.st_ctime_ns - status.st_mtime_ns > _UNPACKED_AFTER_NS:
            return f"unpacked from an archive: {name}"
        if _has_origin_mark(workspace / name):
            return f"downloaded: {name}"
    return ""


def find_source(workspace: Path) -> str:
    """A digest of the address that the files come from; empty where there is none, or none can be read."""
    for folder in (workspace.resolve(), *workspace.resolve().parents):
        for read in (read_git_config, _read_hg_config):
            try:
                text = read(folder)
            except OSError:
                continue
            remote = _REMOTE.search(text)
            url = _URL.search(text, remote.end() if remote else 0)
            if url:
                return hashlib.sha256(url["url"].encode()).hexdigest()
    return ""


def is_tracked(file: Path) -> bool:
    """A repository brings this file, or one beside it whose name begins alike, such as a database's log."""
    for folder in file.absolute().parents:
        try:
            index = (find_git_folder(folder) / "index").read_bytes()
        except OSError:
            continue
        if os.fsencode(file.absolute().relative_to(folder)) in index:
            return True
    return False


def _look_for_svn(folder: Path) -> str | None:
    return "Subversion" if (folder / ".svn").is_dir() else None


def _look_for_jj(folder: Path) -> str | None:
    return "Jujutsu" if (folder / ".jj").is_dir() else None


def _look_for_hg(folder: Path) -> str | None:
    """Mercurial keeps what its last transaction was: a clone, a pull and a bundle are not commits."""
    if not (folder / ".hg").is_dir():
        return None
    found = _name_if(_HG_SOURCE, folder / ".hg/hgrc", "Mercurial")
    return found or _name_if(_HG_FETCHED, folder / ".hg/store/undo.desc", "Mercurial: something was pulled")


def _has_origin_mark(file: Path) -> bool:
    try:
        return any(name in _ORIGIN_MARKS for name in os.listxattr(file, follow_symlinks=False))
    except (OSError, AttributeError):  # there are none on this file system, or on this platform
        return False


def _read_hg_config(workspace: Path) -> str:
    return _read(workspace / ".hg/hgrc")


def _name_if(pattern: re.Pattern[str], file: Path, name: str) -> str:
    try:
        return name if pattern.search(_read(file)) else ""
    except FileNotFoundError:
        return ""
    except OSError:
        return name


def _read(file: Path) -> str:
    with file.open("rb") as stream:
        return stream.read(_MOST_BYTES).decode("utf-8", "replace")
