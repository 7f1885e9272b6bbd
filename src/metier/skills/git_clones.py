"""Detects cloned and downloaded folders by traces of version control and downloads. Runs no program.

The content of a clone comes from its author, but its `.git` was written by the user's own git and records the origin. A
git repository cannot contain a `.git`, but it can contain a `.hg`, and vice versa. So every kind of version control is
checked, and the folder is foreign if one of them reports an origin.
"""

import hashlib
import os
import re
import stat
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from metier.definitions.files.contained_path import is_absent

_REMOTE = re.compile(r'^\s*\[\s*remote\s+"(?P<name>[^"]*)"', re.MULTILINE | re.IGNORECASE)
_INCLUDE = re.compile(r"^\s*\[\s*include(?:if\b[^\]]*)?\s*\]", re.MULTILINE | re.IGNORECASE)
# In a reflog, this stands for no commit.
_NONE = "0" * 40
_MAX_BYTES = 1 << 20
_FIRST_LINE = 4096
_FOREIGN_MOVES = re.compile(
    rb"\t(?:clone: from|pull\b|initial pull|fetch\b|am\b|am:|merge (?:FETCH_HEAD|[^:\n]*(?:origin|remotes)/)"
    rb"|(?:checkout: moving from \S+ to|reset: moving to) (?:FETCH_HEAD|\S*(?:origin|remotes)/)"
    rb"|rebase[^:\n]*: checkout (?:FETCH_HEAD|\S*(?:origin|remotes)/)|branch: Created from FETCH_HEAD)"
)
"""Reflog messages of `HEAD` for operations that add foreign files to the work tree."""
_LOCAL_MOVES = re.compile(
    r"commit(?: \([a-z-]+\))?:|revert:|cherry-pick:|merge [^:]+: Merge made"
    r"|rebase[^:]*\((?:pick|continue|reword|squash|fixup|finish)\):"
)
"""Reflog messages of commits from local files."""

_URL = re.compile(r"^\s*(?:url|default)\s*=\s*(?P<url>\S.*?)\s*$", re.MULTILINE | re.IGNORECASE)
_HG_SOURCE = re.compile(r"^\s*(?:default|%include)\b", re.MULTILINE)
_HG_FETCHED = re.compile(r"\b(?:pull|unbundle|serve|import)\b")
_SECOND_NS = 1_000_000_000
_UNPACKED_AFTER_NS = 2 * _SECOND_NS
_ORIGIN_MARKS = ("user.xdg.origin.url", "com.apple.quarantine")
"""Attributes that browsers and archive programs add to downloaded files."""


def get_git_folder(workspace: Path) -> Path:
    """Return the git folder of a repository, linked work tree or submodule. Raises `OSError`."""
    git = workspace / ".git"
    # In a linked work tree or a submodule, `.git` is a file with the path of the folder.
    return git if git.is_dir() else git.parent / _read(git).removeprefix("gitdir:").strip()


def read_git_config(workspace: Path) -> str:
    """Return the text of a git configuration. Raises `OSError`."""
    return _read(_get_common(get_git_folder(workspace)) / "config")


# The user's own git writes these records; a repository can't. They are checked for a trace of a fetch, and for evidence
# that everything was committed here.
def find_git_origin(folder: Path) -> str | None:
    """Describe the origin of a repository. An empty string means that it was created here, None that there is none."""
    if is_absent(folder / ".git"):
        return None
    try:
        own = get_git_folder(folder)
        common = _get_common(own)
        config = _read(common / "config")
    except FileNotFoundError:
        # With an empty `.git`, git uses the repository of a parent folder.
        return None
    except (OSError, ValueError):
        return "git"
    sign, remote = _get_fetched(own, common, config), _get_remote(common, config)
    if remote and (sign or not _is_made_here(own, common)):
        return f"git remote {remote!r}"
    return sign


def _get_fetched(own: Path, common: Path, config: str) -> str:
    """Describe a trace of a fetch, which remains if the remote is removed."""
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


def _get_remote(common: Path, config: str) -> str:
    """Return the first remote in the configuration or in the remote branches."""
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
    """Return True if every commit of `HEAD` was made here, and all remote branches result from pushes."""
    log = _read_bytes(own / "logs/HEAD")
    # A log that is cut, or that of a linked work tree, doesn't tell where its first commit came from.
    if not log or len(log) >= _MAX_BYTES or own != common:
        return False
    known = {_NONE}
    for line in log.decode("utf-8", "replace").splitlines():
        before, after, message = line[:40], line[41:81], line.partition("\t")[2]
        if before not in known or not (after in known or _LOCAL_MOVES.match(message)):
            return False
        known.add(after)
    return len(known) > 1 and _is_only_pushed(common)


def _is_only_pushed(common: Path) -> bool:
    """Return True if the logs of remote branches contain only pushes."""
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


def _get_common(own: Path) -> Path:
    # A linked work tree shares the settings and the commits of its main repository.
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
            return stream.read(_MAX_BYTES)
    except OSError:
        return b""


def _read(file: Path) -> str:
    with file.open("rb") as stream:
        return stream.read(_MAX_BYTES).decode("utf-8", "replace")


type _OriginCheck = Callable[[Path], str | None]
"""Checks one kind of version control. Returns None if it is unused, an empty string for a local repository, else the
origin."""


def find_origin(workspace: Path, *, nested: Iterable[str] = ()) -> str:
    """Describe the origin of a folder. An empty string means that it was created here.

    `nested` lists subfolders that may be repositories, such as a submodule with skills. Unreadable records count as
    foreign.
    """
    folders = (workspace.resolve(), *workspace.resolve().parents)
    looks: tuple[_OriginCheck, ...] = (_look_for_svn, _look_for_jj, _check_mercurial, find_git_origin)
    said = (next((found for folder in folders if (found := look(folder)) is not None), "") for look in looks)
    inside = (look(workspace / name) or "" for name in nested for look in looks)
    return next(filter(None, (*said, *inside)), "")


def get_unpacked(files: Iterable[tuple[str, os.stat_result]], workspace: Path) -> str:
    """Describe a file from an archive or a browser. An empty string means that there is no trace of either.

    Unpacking an archive restores times in whole seconds. A file that a user saves has a time with fractions, even after
    a copy or a move.
    """
    for name, status in files:
        if not stat.S_ISREG(status.st_mode):
            continue
        # Some file systems only store whole seconds; their change times show it.
        is_whole = status.st_mtime_ns % _SECOND_NS == 0 and status.st_ctime_ns % _SECOND_NS != 0
        if is_whole and status.st_ctime_ns - status.st_mtime_ns > _UNPACKED_AFTER_NS:
            return f"unpacked from an archive: {name}"
        if _has_origin_mark(workspace / name):
            return f"downloaded: {name}"
    return ""


def get_source(workspace: Path) -> str:
    """Return a digest of the origin's address, or an empty string if it is missing or unreadable."""
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
    """Return True if a repository contains this file, or one with the same prefix, such as the log of a database."""
    for folder in file.absolute().parents:
        try:
            index = (get_git_folder(folder) / "index").read_bytes()
        except OSError:
            continue
        if os.fsencode(file.absolute().relative_to(folder)) in index:
            return True
    return False


def _look_for_svn(folder: Path) -> str | None:
    return "Subversion" if (folder / ".svn").is_dir() else None


def _look_for_jj(folder: Path) -> str | None:
    return "Jujutsu" if (folder / ".jj").is_dir() else None


def _check_mercurial(folder: Path) -> str | None:
    """Check Mercurial's record of the last transaction. Anything but a commit, such as a pull, is a foreign origin."""
    if not (folder / ".hg").is_dir():
        return None
    found = _name_if(_HG_SOURCE, folder / ".hg/hgrc", "Mercurial")
    return found or _name_if(_HG_FETCHED, folder / ".hg/store/undo.desc", "Mercurial: something was pulled")


def _has_origin_mark(file: Path) -> bool:
    try:
        return any(name in _ORIGIN_MARKS for name in os.listxattr(file, follow_symlinks=False))
    except (OSError, AttributeError):  # not supported by this file system or platform
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
