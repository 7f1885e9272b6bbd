"""What a confined program finds around it: system folders, the agent's own Python, the closed parts of a workspace.

Looks at names only; nothing is opened and nothing is decided about rights.
"""

import os
import sys
from collections import deque
from collections.abc import Collection, Iterable, Iterator
from pathlib import Path

from metier.dataclass import dataclass
from metier.tools.process.interpreter import base_interpreter
from metier.tools.protected import INSTRUCTIONS, OWN_FILES, SECRETS_REASON, STANDING_FOLDERS, protected_name

SYSTEM = (
    "/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32", "/opt", "/nix/store", "/run/current-system/sw",
)  # fmt: skip
"""Programs and libraries."""

_ETC = (
    "alternatives", "bash.bashrc", "ca-certificates", "ca-certificates.conf", "crypto-policies", "debian_version",
    "environment.d", "ethertypes", "fonts", "gai.conf", "group", "host.conf", "hosts", "inputrc", "java", "ld.so.cache",
    "ld.so.conf", "ld.so.conf.d", "locale.alias", "locale.conf", "localtime", "lsb-release", "magic", "mailcap",
    "manpath.config", "mime.types", "networks", "nsswitch.conf", "os-release", "passwd", "pki/ca-trust",
    "pki/tls/cert.pem", "pki/tls/certs", "profile", "protocols", "resolv.conf", "services", "shells", "ssl/cert.pem",
    "ssl/certs", "ssl/openssl.cnf", "static/ssl/certs", "terminfo", "timezone", "xattr.conf",
)  # fmt: skip
"""Of `/etc`, by name: how things are called and where they are. Never what holds keys or password hashes."""

DEVICES = ("/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom")

_PASSED_OVER = frozenset({"node_modules", "site-packages", "__pycache__", ".venv", "venv", ".tox", ".mypy_cache"})
"""Packages of others: many names, and no secrets among them."""
_TOP = 2
"""`/` and `/home` are never shown as a whole."""
MAX_ENTRIES = 5_000
"""So many names of a workspace are looked at, the nearest to its top first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Closed:
    """The parts of a workspace that a program may not write, or not even read. Absolute paths that exist."""

    read_only: tuple[Path, ...] = ()
    hidden: tuple[Path, ...] = ()
    absent: tuple[str, ...] = ()
    """Relative paths that do not exist and must not be made."""


def list_system() -> tuple[Path, ...]:
    """Everything outside a workspace that a program needs to run at all."""
    named = (*(Path(path) for path in SYSTEM), *(Path("/etc") / name for name in _ETC))
    return tuple(path for path in named if path.exists())


def list_own() -> tuple[Path, ...]:
    """The Python that runs the agent and its programs, wherever it was installed, and the agent's own code."""
    # The folder around the package: an import lists it.
    code = Path(__file__).resolve().parents[4]
    interpreter = Path(base_interpreter()).resolve().parent.parent
    places = dict.fromkeys((Path(sys.prefix), Path(sys.base_prefix), interpreter, code))
    return tuple(path for path in places if len(path.parts) > _TOP)


def find_closed(workspace: Path, own: Collection[Path]) -> Closed:
    """`own` are folders of the agent's own, such as the runs and the skills; those outside do not count."""
    inside = [path for path in own if path != workspace and path.is_relative_to(workspace)]
    read_only = [path for path in inside if path.exists()]
    hidden: list[Path] = []
    for path, reason in _find_protected(workspace, passed_over=frozenset(read_only)):
        (hidden if reason == SECRETS_REASON else read_only).append(path)
    read_only += [workspace / name for name in OWN_FILES if (workspace / name).is_file()]
    read_only += _follow(workspace, (*read_only, *(workspace / name for name in STANDING_FOLDERS)))
    standing = (*STANDING_FOLDERS, *OWN_FILES, *(path.relative_to(workspace).as_posix() for path in inside))
    absent = tuple(dict.fromkeys(name for name in standing if _is_free(workspace / name)))
    return Closed(read_only=tuple(read_only), hidden=tuple(hidden), absent=absent)


def list_instructions(workspace: Path) -> tuple[Path, ...]:
    """Files at the top that the next run is told. A link among them is not held, a file that it leads to is."""
    found = dict.fromkeys((workspace / name).resolve() for name in INSTRUCTIONS)
    return tuple(path for path in found if path.parent == workspace and path.is_file())


def list_missing_instructions(workspace: Path) -> tuple[str, ...]:
    """Those of the same names that are not there: a program that makes one would instruct the next run."""
    return tuple(name for name in INSTRUCTIONS if _is_free(workspace / name))


def _follow(workspace: Path, paths: Iterable[Path]) -> list[Path]:
    """Where those lead that are links, or lie beneath one; what is outside of the workspace is not written anyway."""
    led = ((path, path.resolve()) for path in paths if path.exists())
    return [target for path, target in led if target not in {path, workspace} and target.is_relative_to(workspace)]


def _find_protected(workspace: Path, *, passed_over: Collection[Path]) -> Iterator[tuple[Path, str]]:
    """Breadth first, so that what a limit leaves out is the deepest."""
    folders, seen = deque([str(workspace)]), 0
    closed = {str(path) for path in passed_over}
    while folders and seen < MAX_ENTRIES:
        try:
            entries = os.scandir(folders.popleft())
        except OSError:
            continue
        with entries:
            for entry in entries:
                seen += 1
                if entry.path in closed or entry.is_symlink():
                    continue
                if reason := protected_name(entry.name):
                    yield Path(entry.path), reason
                elif entry.name not in _PASSED_OVER and entry.is_dir(follow_symlinks=False):
                    folders.append(entry.path)


def _is_free(path: Path) -> bool:
    """Nothing is there, or an empty folder, such as one that holds the place for another program."""
    if path.is_symlink() or path.parent.is_symlink():
        return False
    try:
        return not any(path.iterdir())
    except FileNotFoundError:
        return True
    except OSError:
        return False
