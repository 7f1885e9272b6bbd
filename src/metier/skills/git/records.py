"""What git wrote down about where the files of a work tree came from. Reads `.git`; runs no program.

Everything here is written by the person's own git and never by a repository. Two questions: is there a sign that
something was fetched, and do the records prove that all of it was committed here?
"""

import os
import re
from collections.abc import Iterator
from pathlib import Path

from metier.lazy_regex import lazy_regex

_REMOTE = lazy_regex(r'^\s*\[\s*remote\s+"(?P<name>[^"]*)"', re.MULTILINE | re.IGNORECASE)
_INCLUDE = lazy_regex(r"^\s*\[\s*include(?:if\b[^\]]*)?\s*\]", re.MULTILINE | re.IGNORECASE)
_NONE = "0" * 40
_MOST_BYTES = 1 << 20
_FIRST_LINE = 4096
_FOREIGN_MOVES = lazy_regex(
    rb"\t(?:clone: from|pull\b|initial pull|fetch\b|am\b|am:|merge (?:FETCH_HEAD|[^:\n]*(?:origin|remotes)/)"
    rb"|(?:checkout: moving from \S+ to|reset: moving to) (?:FETCH_HEAD|\S*(?:origin|remotes)/)"
    rb"|rebase[^:\n]*: checkout (?:FETCH_HEAD|\S*(?:origin|remotes)/)|branch: Created from FETCH_HEAD)"
)
"""Messages of the reflog of `HEAD` that brought files from elsewhere into the work tree."""
_LOCAL_MOVES = lazy_regex(
    r"commit(?: \([a-z-]+\))?:|revert:|cherry-pick:|merge [^:]+: Merge made"
    r"|rebase[^:]*\((?:pick|continue|reword|squash|fixup|finish)\):"
)
"""Messages that made a new commit from what was there: nothing else was, where nothing was fetched."""


def find_git_folder(workspace: Path) -> Path:
    """The `.git` of a folder, also of a linked work tree or a submodule. Raises `OSError`."""
    git = workspace / ".git"
    return git if git.is_dir() else git.parent / _read(git).removeprefix("gitdir:").strip()


def read_git_config(workspace: Path) -> str:
    """Raises `OSError`."""
    return _read(_find_common(find_git_folder(workspace)) / "config")


def find_git_origin(folder: Path) -> str | None:
    """In words, where the files of a repository come from; "" where they were made here, None where there is none."""
    if not os.path.lexists(folder / ".git"):
        return None
    try:
        own = find_git_folder(folder)
        common = _find_common(own)
        config = _read(common / "config")
    except FileNotFoundError:
        # An empty `.git`, such as the one that holds a place in a sandbox: a repository above it still speaks.
        return None
    except (OSError, ValueError):
        return "git"
    sign, remote = _find_fetched(own, common, config), _find_remote(common, config)
    if remote and (sign or not _is_made_here(own, common)):
        return f"git remote {remote!r}"
    return sign


def _find_fetched(own: Path, common: Path, config: str) -> str:
    """A sign that something came from elsewhere, whether or not a remote is still named."""
    if _INCLUDE.search(config) or _INCLUDE.search(_read_if_there(own / "config.worktree")):
        return "git settings that include others"
    if any(_size(folder / "FETCH_HEAD") for folder in {own, common}):
        return "git: something was fetched"
    if _size(common / "shallow") or _size(common / "objects/info/alternates"):
        return "git: objects from elsewhere"
    for folder in {own, common}:
        if (move := _FOREIGN_MOVES.search(_read_bytes(folder / "logs/HEAD"))) is not None:
            return f"git: {move[0].decode('ascii', 'replace').strip()}"
    first = _read_bytes(common / "logs/HEAD")[:_FIRST_LINE].decode("utf-8", "replace").partition("\n")[0]
    if first.startswith(_NONE) and not first.partition("\t")[2].startswith("commit"):
        return "git: a first commit that was not made here"
    if not os.path.lexists(own / "logs/HEAD") and _has_commits(common):
        return "git: commits of which this machine has no record"
    return ""


def _find_remote(common: Path, config: str) -> str:
    """The first remote that is named anywhere; branches of a remote count as one."""
    if (found := _REMOTE.search(config)) is not None:
        return found["name"]
    for folder in ("remotes", "branches"):
        if name := next(_list_files(common / folder), ""):
            return name
    if name := next(_list_files(common / "refs/remotes"), ""):
        return name
    packed = re.search(r" refs/remotes/([^/\s]+)/", _read_if_there(common / "packed-refs"))
    return packed[1] if packed else ""


def _is_made_here(own: Path, common: Path) -> bool:
    """Every commit that `HEAD` ever stood on was made here, and all that is known of remotes was pushed to them."""
    log = _read_bytes(own / "logs/HEAD")
    if not log or len(log) >= _MOST_BYTES or own != common:
        return False
    known = {_NONE}
    for line in log.decode("utf-8", "replace").splitlines():
        before, after, message = line[:40], line[41:81], line.partition("\t")[2]
        if before not in known or not (after in known or _LOCAL_MOVES.match(message)):
            return False
        known.add(after)
    return len(known) > 1 and _is_only_pushed(common)


def _is_only_pushed(common: Path) -> bool:
    """Branches of remotes that a push left behind say so in their own record."""
    if " refs/remotes/" in _read_if_there(common / "packed-refs"):
        return False
    for name in _list_files(common / "refs/remotes"):
        record = _read_if_there(common / "logs/refs/remotes" / name).splitlines()
        if not record or any(not line.endswith("\tupdate by push") for line in record):
            return False
    return True


def _has_commits(common: Path) -> bool:
    return _size(common / "packed-refs") > 0 or next(_list_files(common / "refs/heads"), "") != ""


def _list_files(folder: Path) -> Iterator[str]:
    for parent, _, names in os.walk(folder):
        for name in names:
            yield Path(parent, name).relative_to(folder).as_posix()


def _find_common(own: Path) -> Path:
    common = own / "commondir"
    return own / _read(common).strip() if common.is_file() else own


def _size(file: Path) -> int:
    try:
        return file.stat().st_size
    except OSError:
        return 0


def _read_if_there(file: Path) -> str:
    return _read_bytes(file).decode("utf-8", "replace")


def _read_bytes(file: Path) -> bytes:
    try:
        with file.open("rb") as stream:
            return stream.read(_MOST_BYTES)
    except OSError:
        return b""


def _read(file: Path) -> str:
    with file.open("rb") as stream:
        return stream.read(_MOST_BYTES).decode("utf-8", "replace")
