"""Did this folder come from elsewhere? Told from what version control wrote into it on this machine; runs no program.

What a clone contains is its author's; the `.git` beside it is written by the person's own git, and names where the
files came from. No file of a repository can put such a folder there or take it away.
"""

import re
from pathlib import Path

_REMOTE = re.compile(r'^\s*\[\s*remote\s+"(?P<name>[^"]*)"', re.MULTILINE | re.IGNORECASE)
_HG_SOURCE = re.compile(r"^\s*default\s*=", re.MULTILINE)
_MOST_BYTES = 1 << 20


def find_origin(workspace: Path) -> str:
    """Where the files come from, in words; empty for a folder that was made here.

    What cannot be read counts as coming from elsewhere.
    """
    for folder in (workspace.resolve(), *workspace.resolve().parents):
        if (folder / ".svn").is_dir():
            return "Subversion"
        if (folder / ".jj").is_dir():
            return "Jujutsu"
        if (folder / ".hg").is_dir():
            return _name_if(_HG_SOURCE, folder / ".hg/hgrc", "Mercurial")
        if (folder / ".git").exists():
            return _find_remote(folder / ".git")
    return ""


def _find_remote(git: Path) -> str:
    """The first remote of a repository, of a linked work tree, or of a submodule."""
    try:
        folder = git if git.is_dir() else git.parent / _read(git).removeprefix("gitdir:").strip()
        common = folder / "commondir"
        if common.is_file():
            folder = folder / _read(common).strip()
        found = _REMOTE.search(_read(folder / "config"))
    except FileNotFoundError:
        # An empty `.git`, such as the one that holds a place in a sandbox.
        return ""
    except OSError:
        return "git"
    return f"git remote {found['name']!r}" if found else ""


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
