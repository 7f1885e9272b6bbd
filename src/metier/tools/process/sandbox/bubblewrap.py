"""The bubblewrap arguments of a confinement: an empty root in which only named paths are mounted. Starts nothing.

These are the system folders, the agent's own Python, and the folders that the confined program may reach. Only names
are considered here, no access rights.
"""

import functools
import importlib.machinery
import sys
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from msgspec import Struct, field

from metier.programs.launcher import BUBBLEWRAP, find_program
from metier.tools.process.child_environment import base_interpreter
from metier.tools.process.sandbox.protected_paths import Closed

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
"""Files of `/etc` with names and locations. Files with keys or password hashes are never listed."""

DEVICES = ("/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom")

_STARTUP = ("sitecustomize", "usercustomize")
"""Modules that every Python imports at startup."""
_TOP = 2
"""Paths with at most this many parts, such as `/` and `/home`, are never mounted."""


def list_system() -> tuple[Path, ...]:
    """List the existing system paths that programs need."""
    named = (*(Path(path) for path in SYSTEM), *(Path("/etc") / name for name in _ETC))
    return tuple(path for path in named if path.exists())


def list_own() -> tuple[Path, ...]:
    """List the folders of the agent's Python and of the agent's own code."""
    # The folder that contains the package, because an import lists it.
    code = Path(__file__).resolve().parents[4]
    interpreter = Path(base_interpreter()).resolve().parent.parent
    places = dict.fromkeys((Path(sys.prefix), Path(sys.base_prefix), interpreter, code))
    return tuple(path for path in places if len(path.parts) > _TOP)


def list_startup_modules(workspace: Path) -> tuple[str, ...]:
    """List the startup modules that Python would import from workspace folders on Metier's own import path.

    Such folders belong to packages that are installed from the workspace into Metier's environment.
    """
    return _list_startup_modules(workspace, tuple(sys.path))


@functools.lru_cache(maxsize=8)
def _list_startup_modules(workspace: Path, import_path: tuple[str, ...]) -> tuple[str, ...]:
    folders = dict.fromkeys(Path(entry).resolve() for entry in import_path if entry)
    exposed = [
        folder
        for folder in folders
        if folder.is_relative_to(workspace) and not any(folder.is_relative_to(own) for own in list_own())
    ]
    names = [f"{name}{suffix}" for name in _STARTUP for suffix in ("", *importlib.machinery.all_suffixes())]
    return tuple((folder / name).relative_to(workspace).as_posix() for folder in exposed for name in names)


class Reach(Struct, frozen=True, kw_only=True):
    """The paths that a program can reach, besides the system's and its scratch folder. All are absolute and exist."""

    workspace: Path
    """With links resolved."""
    readable: tuple[Path, ...] = ()
    writable: tuple[Path, ...] = ()
    closed: Closed = field(default_factory=Closed)
    sealed: tuple[Path, ...] = ()
    """Workspace folders in which no file can be created, because a Python outside the sandbox imports from them."""
    network: bool = False
    read_only: bool = False
    """Only the scratch folder is writable."""

    def inside(self, paths: Iterable[Path]) -> tuple[Path, ...]:
        """Return the paths below the workspace, which would otherwise be writable as part of it."""
        return tuple(path for path in paths if path != self.workspace and path.is_relative_to(self.workspace))

    def list_closed(self) -> tuple[Path, ...]:
        """List the workspace paths that may be read but not written or moved."""
        return tuple(dict.fromkeys((*self.closed.read_only, *self.inside(self.readable))))

    def covers(self, path: Path) -> bool:
        """Return True if the path is already readable."""
        return any(path.is_relative_to(place) for place in (self.workspace, *self.readable, *self.writable))


type Mount = tuple[Path, tuple[str, ...]]
"""A path and the bubblewrap options that create it: a mount, a link or a folder."""

TEMPORARY = Path("/tmp")  # noqa: S108  the private one inside
EMPTY, HOME, SHARED = "empty", "home", "shm"
"""Subfolders of a program's scratch folder."""


def get_bubblewrap(environ: Mapping[str, str], workspace: Path, writable: Iterable[Path] = ()) -> str:
    """Return the program's path; empty if it isn't installed. `writable` are writable paths besides the workspace."""
    found = find_program(BUBBLEWRAP, "bwrap", environ, writable=(workspace, *writable))
    return found.path if found is not None else ""


def build_arguments(
    program: str, reach: Reach, *, scratch: Path, folder: Path, masked: Iterable[Path] = ()
) -> list[str]:
    """Build the arguments before the command. `scratch` is an empty folder of the host, `folder` the working folder.

    `masked` files can be neither run nor read.
    """
    # For the same path, a later entry replaces an earlier one, so the protections come last.
    mounts = dict(
        (
            *_mount_system(),
            *_mount_parents(reach),
            *_mount_sealed(reach),
            *_mount_granted(reach),
            *_mount_closed(reach, scratch / EMPTY),
        )
    )
    mounts |= {
        # A new one, which shows only the processes of the namespace.
        Path("/proc"): ("--proc", "/proc"),
        Path("/dev"): ("--dev", "/dev"),
        # `--dev` creates no writable `/dev/shm`, and Python's `multiprocessing` and Chromium need one.
        Path("/dev/shm"): ("--bind", str(scratch / SHARED), "/dev/shm"),  # noqa: S108
        TEMPORARY: ("--bind", str(scratch), str(TEMPORARY)),
        Path("/var/tmp"): ("--symlink", str(TEMPORARY), "/var/tmp"),  # noqa: S108
    }
    mounts |= {path: ("--ro-bind", "/dev/null", str(path)) for path in masked}
    arguments = [program, "--unshare-all", *(["--share-net"] if reach.network else [])]
    # A new session has no controlling terminal, so the program can't type into the user's terminal (TIOCSTI). As PID 1,
    # the shim takes all processes of the namespace with it when it ends.
    arguments += ["--die-with-parent", "--new-session", "--as-pid-1", "--cap-drop", "ALL"]
    # Parents first: a later mount of a parent would hide the mounts below it.
    for _, how in sorted(mounts.items(), key=lambda mount: len(mount[0].parts)):
        arguments += how
    # Last: mount points are created in the root while it is still writable.
    return [*arguments, "--remount-ro", "/", "--chdir", str(folder), "--"]


def _mount_system() -> Iterator[Mount]:
    for path in list_system():
        # `/bin` is a link to `usr/bin` on most systems, `resolv.conf` one to a folder that stays outside.
        if path.is_symlink() and path.parent == Path("/"):
            yield path, ("--symlink", str(path.readlink()), str(path))
        else:
            yield path, ("--ro-bind", str(path.resolve()), str(path))


def _mount_parents(reach: Reach) -> Iterator[Mount]:
    """Mount the parents of closed and hidden paths onto themselves, because a mount point can't be renamed away."""
    if reach.read_only:
        # Nothing can be renamed in a read-only workspace, and these mounts would be writable.
        return
    closed = frozenset((*reach.list_closed(), *reach.closed.hidden))
    held: set[Path] = set()
    for path in closed:
        for folder in path.parents:
            if folder == reach.workspace or folder in held:
                break
            held.add(folder)
    for folder in held:
        if closed.isdisjoint((folder, *folder.parents)):
            # `-try`: the folder may be gone by the time bubblewrap runs.
            yield folder, ("--bind-try", str(folder), str(folder))


def _mount_granted(reach: Reach) -> Iterator[Mount]:
    yield from _bind("--ro-bind", reach.readable)
    how = "--ro-bind" if reach.read_only or reach.workspace in reach.sealed else "--bind"
    # At its own path, so that paths in messages and configuration mean the same inside and outside.
    yield reach.workspace, (how, str(reach.workspace), str(reach.workspace))
    yield from _bind("--ro-bind", reach.inside(reach.readable))
    yield from _bind("--bind", reach.writable)


def _mount_sealed(reach: Reach) -> Iterator[Mount]:
    """Mount the folder read-only and each entry writable, so that entries can be changed and none can be added."""
    for folder in reach.sealed:
        yield folder, ("--ro-bind", str(folder), str(folder))
        yield from _bind("--bind", (path for path in folder.iterdir() if not path.is_symlink()))


def _mount_closed(reach: Reach, empty: Path) -> Iterator[Mount]:
    yield from _bind("--ro-bind", reach.closed.read_only)
    for path in reach.closed.hidden:
        # A mount needs a target of the same kind: an empty folder hides a folder, an empty file a file.
        nothing = str(empty) if path.is_dir() else "/dev/null"
        yield path, ("--ro-bind", nothing, str(path))


def _bind(how: str, paths: Iterable[Path]) -> Iterator[Mount]:
    for path in paths:
        yield path, (how, str(path.resolve()), str(path))
