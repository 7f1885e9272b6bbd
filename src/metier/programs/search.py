"""Find programs in folders that confined programs cannot write, and build a clean environment for them.

`writable` names the folders that confined programs can write, at least the workspace. PATH folders inside them are
ignored, such as an activated `.venv/bin` of the project.
"""

import os
import shutil
import stat
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path

SYSTEM = ("/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin", "/sbin", "/bin", "/run/current-system/sw/bin")
"""The folders of PATH to search first. They replace a missing PATH."""

LOADER_VARIABLES = (
    "PYTHONPATH", "PYTHONHOME", "PYTHONSTARTUP", "NODE_PATH", "NODE_OPTIONS", "LD_LIBRARY_PATH", "LD_PRELOAD", "PATH",
    "RUBYLIB", "PERL5LIB", "CLASSPATH", "UV_PROJECT", "VIRTUAL_ENV", "BASH_ENV", "LD_AUDIT", "GCONV_PATH",
    "PYTHONUSERBASE",
)  # fmt: skip
"""Variables that name folders or files that programs load code from."""
_PATH_LISTS = tuple(name for name in LOADER_VARIABLES if name != "NODE_OPTIONS")
"""The loader variables that are lists of paths."""


excluded_folders: set[Path] = set()
"""Folders that the setting `sandbox.writable` opens to confined programs."""


def exclude_folders(folders: Iterable[Path]) -> None:
    """Never search these folders in this process, whatever `writable` a caller passes."""
    excluded_folders.update(folders)


def get_trusted_program(name: str, environ: Mapping[str, str], *, writable: Collection[Path]) -> str:
    """Return a program's absolute path; empty if there is none outside `writable`, with links resolved."""
    # The folder is trusted, but the program in it may be a link into a writable one.
    found = shutil.which(name, path=build_trusted_path(environ, writable=writable))
    if not found or is_within(Path(found), writable):
        return ""
    return found


def build_trusted_environment(
    environ: Mapping[str, str], *, writable: Collection[Path], names: Iterable[str] = ()
) -> dict[str, str]:
    """Return the trusted PATH, and only the named variables of `environ`."""
    passed = {name: environ[name] for name in names if name in environ}
    return passed | {"PATH": build_trusted_path(environ, writable=writable)}


def build_trusted_path(environ: Mapping[str, str], *, writable: Collection[Path]) -> str:
    """Return the trusted folders of PATH: system folders first, then the others in their order."""
    folders = environ["PATH"].split(os.pathsep) if environ.get("PATH") else list(SYSTEM)
    roots = _list_roots(writable)
    trusted = [folder for folder in dict.fromkeys(folders) if _is_trusted(Path(folder), roots)]
    # System folders first, because only root can write them.
    return os.pathsep.join(sorted(trusted, key=lambda folder: folder not in SYSTEM))


def drop_writable_paths(
    environ: Mapping[str, str], *, writable: Collection[Path], but: Collection[Path] = (), keep: Collection[str] = ()
) -> dict[str, str]:
    """Return the environment without the entries that make a program load code from `writable`.

    Entries below one of `but` stay, because the hash of those files was accepted. Relative and empty entries are
    removed. Variables named in `keep` are not changed.
    """
    roots = _list_roots(writable)
    result = dict(environ)
    for name in _PATH_LISTS:
        if name not in environ or name in keep:
            continue
        # The loader accepts both blanks and colons in LD_PRELOAD.
        separator = " " if name == "LD_PRELOAD" else os.pathsep
        entries = environ[name].replace(":", " ").split() if name == "LD_PRELOAD" else environ[name].split(os.pathsep)
        allowed = [entry for entry in entries if _is_outside(entry, roots, but)]
        # An empty PYTHONPATH or LD_LIBRARY_PATH can mean the current folder, so the variable goes with its last entry.
        result[name] = separator.join(allowed)
        if not allowed:
            del result[name]
    return result


def is_within(path: Path, places: Collection[Path]) -> bool:
    """Return True if the path, as written or with links resolved, lies in one of the places."""
    return _lies_in(path, _list_roots(places))


def _is_outside(entry: str, roots: Collection[Path], but: Collection[Path]) -> bool:
    path = Path(entry)
    if not entry or not path.is_absolute():
        return False
    return not _lies_in(path, roots) or any(path.is_relative_to(place) for place in but)


def _is_trusted(folder: Path, roots: Collection[Path]) -> bool:
    # A relative entry depends on the working folder, which may be the workspace.
    if not folder.is_absolute() or _lies_in(folder, roots):
        return False
    try:
        # The programs of a virtual environment belong to a project, and a run in that project may write them.
        if (folder.parent / "pyvenv.cfg").exists():
            return False
        mode = folder.stat().st_mode
    except OSError:
        return False
    # Any user can put a program into a world-writable folder. Windows has no such mode bit.
    return stat.S_ISDIR(mode) and (os.name == "nt" or not mode & stat.S_IWOTH)


def _list_roots(places: Collection[Path]) -> set[Path]:
    """Return the places as written and with links resolved."""
    return {root for place in (*places, *excluded_folders) for root in (place.absolute(), place.resolve())}


def _lies_in(path: Path, roots: Collection[Path]) -> bool:
    spellings = {path, path.resolve()}
    return any(spelling.is_relative_to(root) for spelling in spellings for root in roots)
