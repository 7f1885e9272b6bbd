"""The arguments of bubblewrap for a confinement: a root with nothing in it but what is named. Starts nothing.

It names the system folders, the agent's own Python and the folders that the confined program may reach. It looks at
names only and decides nothing about rights.
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
"""Of `/etc`, by name: how things are called and where they are. Never what holds keys or password hashes."""

DEVICES = ("/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom")

_STARTUP = ("sitecustomize", "usercustomize")
"""Modules that every Python imports by itself."""
_TOP = 2
"""`/` and `/home` are never shown as a whole."""


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


def list_startup_modules(workspace: Path) -> tuple[str, ...]:
    """List the modules that Python imports before Metier, in folders of the workspace on Metier's own import path.

    Such a folder is that of a package which is installed from the workspace into the environment of Metier.
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
    """Paths are absolute and exist. What is not named here, in `surroundings` or in the scratch folder is not there."""

    workspace: Path
    """With every link on the way resolved."""
    readable: tuple[Path, ...] = ()
    writable: tuple[Path, ...] = ()
    closed: Closed = field(default_factory=Closed)
    sealed: tuple[Path, ...] = ()
    """Folders of the workspace that take no new names: a Python outside of the sandbox imports modules from them."""
    network: bool = False
    read_only: bool = False
    """Nothing but the scratch folder can be written."""

    def inside(self, paths: Iterable[Path]) -> tuple[Path, ...]:
        """Those beneath the workspace, which would be writable as parts of it."""
        return tuple(path for path in paths if path != self.workspace and path.is_relative_to(self.workspace))

    def list_closed(self) -> tuple[Path, ...]:
        """List the workspace paths that may be read but not written or moved."""
        return tuple(dict.fromkeys((*self.closed.read_only, *self.inside(self.readable))))

    def covers(self, path: Path) -> bool:
        """It is already there to be read."""
        return any(path.is_relative_to(place) for place in (self.workspace, *self.readable, *self.writable))


type Mount = tuple[Path, tuple[str, ...]]
"""A path and its bubblewrap option; links and folders are mounts here too."""

TEMPORARY = Path("/tmp")  # noqa: S108  the private one inside
EMPTY, HOME, SHARED = "empty", "home", "shm"
"""Folders in the scratch folder of one program."""


def get_bubblewrap(environ: Mapping[str, str], workspace: Path, writable: Iterable[Path] = ()) -> str:
    """The program's path, empty where there is none. `writable` is what programs may write beside the workspace."""
    found = find_program(BUBBLEWRAP, "bwrap", environ, writable=(workspace, *writable))
    return found.path if found is not None else ""


def build_arguments(
    program: str, reach: Reach, *, scratch: Path, folder: Path, masked: Iterable[Path] = ()
) -> list[str]:
    """All but the command. `scratch` is an empty folder of the host, `folder` where the command starts.

    What is `masked` is a file that can be neither run nor read.
    """
    mounts = dict((*_around(), *_held(reach), *_sealed(reach), *_granted(reach), *_closed(reach, scratch / EMPTY)))
    mounts |= {
        Path("/proc"): ("--proc", "/proc"),
        Path("/dev"): ("--dev", "/dev"),
        Path("/dev/shm"): ("--bind", str(scratch / SHARED), "/dev/shm"),  # noqa: S108
        TEMPORARY: ("--bind", str(scratch), str(TEMPORARY)),
        Path("/var/tmp"): ("--symlink", str(TEMPORARY), "/var/tmp"),  # noqa: S108
    }
    mounts |= {path: ("--ro-bind", "/dev/null", str(path)) for path in masked}
    arguments = [program, "--unshare-all", *(["--share-net"] if reach.network else [])]
    # A new session has no controlling terminal, so nothing can be typed into the user's (TIOCSTI). As PID 1, the shim
    # takes all processes of the namespace with it when it ends.
    arguments += ["--die-with-parent", "--new-session", "--as-pid-1", "--cap-drop", "ALL"]
    # What lies deeper is mounted later, on top of what it lies in.
    for _, how in sorted(mounts.items(), key=lambda mount: len(mount[0].parts)):
        arguments += how
    # Last: mount points are created in the root while it is still writable.
    return [*arguments, "--remount-ro", "/", "--chdir", str(folder), "--"]


def _around() -> Iterator[Mount]:
    for path in list_system():
        # `/bin` is a link to `usr/bin` on most systems, `resolv.conf` one to a folder that stays outside.
        if path.is_symlink() and path.parent == Path("/"):
            yield path, ("--symlink", str(path.readlink()), str(path))
        else:
            yield path, ("--ro-bind", str(path.resolve()), str(path))


def _held(reach: Reach) -> Iterator[Mount]:
    """The folders around what is closed or hidden, mounted onto themselves: a mount cannot be renamed away."""
    if reach.read_only:
        # Nothing can be renamed, and these mounts would be writable ones inside the read-only workspace.
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
            # It may be gone by then.
            yield folder, ("--bind-try", str(folder), str(folder))


def _granted(reach: Reach) -> Iterator[Mount]:
    yield from _binds("--ro-bind", reach.readable)
    how = "--ro-bind" if reach.read_only or reach.workspace in reach.sealed else "--bind"
    yield reach.workspace, (how, str(reach.workspace), str(reach.workspace))
    yield from _binds("--ro-bind", reach.inside(reach.readable))
    yield from _binds("--bind", reach.writable)


def _sealed(reach: Reach) -> Iterator[Mount]:
    """Read-only, with each entry mounted onto itself: these can be changed, and nothing can be created beside them."""
    for folder in reach.sealed:
        yield folder, ("--ro-bind", str(folder), str(folder))
        yield from _binds("--bind", (path for path in folder.iterdir() if not path.is_symlink()))


def _closed(reach: Reach, empty: Path) -> Iterator[Mount]:
    yield from _binds("--ro-bind", reach.closed.read_only)
    for path in reach.closed.hidden:
        nothing = str(empty) if path.is_dir() else "/dev/null"
        yield path, ("--ro-bind", nothing, str(path))


def _binds(how: str, paths: Iterable[Path]) -> Iterator[Mount]:
    for path in paths:
        yield path, (how, str(path.resolve()), str(path))
