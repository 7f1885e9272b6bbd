"""Find the programs that Metier starts for itself, outside of any sandbox, and build what they know of the environment.

What the trusted side starts is found here, or is an absolute path of the installation (the interpreter, `uv`);
`docs/security.md` lists it all and a test compares. A folder on PATH counts only where a confined program cannot write:
never one of the workspace, such as an activated `.venv/bin`.
"""

import os
import shutil
import stat
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path

SYSTEM = ("/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin", "/sbin", "/bin", "/run/current-system/sw/bin")
"""Searched first, as far as PATH has them; all of them where there is no PATH."""


def find_trusted_program(name: str, environ: Mapping[str, str], *, writable: Collection[Path]) -> str:
    """The absolute path of a program, empty where there is none.

    `writable` are the places that confined programs write to: the workspace at least. Nothing is found in them, nor
    through a link that leads into them.
    """
    found = shutil.which(name, path=build_trusted_path(environ, writable=writable))
    if not found or _lies_in(Path(found), _find_roots(writable)):
        return ""
    return found


def build_trusted_environment(
    environ: Mapping[str, str], *, writable: Collection[Path], names: Iterable[str] = ()
) -> dict[str, str]:
    """PATH as it is searched here, and of `environ` nothing but the variables that are named."""
    passed = {name: environ[name] for name in names if name in environ}
    return passed | {"PATH": build_trusted_path(environ, writable=writable)}


def build_trusted_path(environ: Mapping[str, str], *, writable: Collection[Path]) -> str:
    """The folders of PATH that may be searched: system folders first, then the others in their order."""
    folders = environ["PATH"].split(os.pathsep) if environ.get("PATH") else list(SYSTEM)
    roots = _find_roots(writable)
    kept = [folder for folder in dict.fromkeys(folders) if _is_trusted(Path(folder), roots)]
    return os.pathsep.join(sorted(kept, key=lambda folder: folder not in SYSTEM))


def _is_trusted(folder: Path, roots: Collection[Path]) -> bool:
    if not folder.is_absolute() or _lies_in(folder, roots):
        return False
    # The programs of a virtual environment belong to a project, and a run in that project may write them.
    if (folder.parent / "pyvenv.cfg").exists():
        return False
    try:
        mode = folder.stat().st_mode
    except OSError:
        return False
    return stat.S_ISDIR(mode) and (os.name == "nt" or not mode & stat.S_IWOTH)


def _find_roots(places: Collection[Path]) -> set[Path]:
    """Places as they are written, and where their links lead."""
    return {root for place in places for root in (place.absolute(), place.resolve())}


def _lies_in(path: Path, roots: Collection[Path]) -> bool:
    """As it is written, or where its links lead."""
    spellings = {path, path.resolve()}
    return any(spelling.is_relative_to(root) for spelling in spellings for root in roots)
