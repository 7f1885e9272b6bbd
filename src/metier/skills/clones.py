"""Did this folder come from elsewhere? Told from what version control wrote into it on this machine; runs no program.

What a clone contains is its author's; the `.git` beside it is written by the person's own git, and names where the
files came from. No file of a git repository can be called `.git`. It can be called `.hg`, and the other way round: so
every kind of version control is asked for itself, and one that says "from elsewhere" is enough.
"""

import hashlib
import os
import re
from collections.abc import Callable
from pathlib import Path

_REMOTE = re.compile(r'^\s*\[\s*remote\s+"(?P<name>[^"]*)"', re.MULTILINE | re.IGNORECASE)
_URL = re.compile(r"^\s*(?:url|default)\s*=\s*(?P<url>\S.*?)\s*$", re.MULTILINE | re.IGNORECASE)
_HG_SOURCE = re.compile(r"^\s*default\s*=", re.MULTILINE)
_MOST_BYTES = 1 << 20

type _Look = Callable[[Path], str | None]
"""What one kind of version control says of a folder: nothing, "" for one that was made here, else where it is from."""


def find_origin(workspace: Path) -> str:
    """Where the files come from, in words; empty for a folder that was made here.

    What cannot be read counts as coming from elsewhere.
    """
    folders = (workspace.resolve(), *workspace.resolve().parents)
    looks: tuple[_Look, ...] = (_look_for_svn, _look_for_jj, _look_for_hg, _look_for_git)
    said = (next((found for folder in folders if (found := look(folder)) is not None), "") for look in looks)
    return next(filter(None, said), "")


def find_source(workspace: Path) -> str:
    """A digest of the address that the files come from; empty where there is none, or none can be read."""
    for folder in (workspace.resolve(), *workspace.resolve().parents):
        for read in (_read_git_config, _read_hg_config):
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
            index = (_find_git_folder(folder) / "index").read_bytes()
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
    return _name_if(_HG_SOURCE, folder / ".hg/hgrc", "Mercurial") if (folder / ".hg").is_dir() else None


def _look_for_git(folder: Path) -> str | None:
    """The first remote of a repository, of a linked work tree, or of a submodule."""
    if not (folder / ".git").exists():
        return None
    try:
        found = _REMOTE.search(_read_git_config(folder))
    except FileNotFoundError:
        # An empty `.git`, such as the one that holds a place in a sandbox: a repository above it still speaks.
        return None
    except OSError:
        return "git"
    return f"git remote {found['name']!r}" if found else ""


def _find_git_folder(workspace: Path) -> Path:
    git = workspace / ".git"
    return git if git.is_dir() else git.parent / _read(git).removeprefix("gitdir:").strip()


def _read_git_config(workspace: Path) -> str:
    folder = _find_git_folder(workspace)
    common = folder / "commondir"
    if common.is_file():
        folder = folder / _read(common).strip()
    return _read(folder / "config")


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
