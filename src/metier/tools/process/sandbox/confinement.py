"""`Confinement`: the sandbox of a program and the command prefix that starts it. The seam between policy and processes.

`process.run` asks for a `Launch` and puts its prefix before the command; its callers only pass a confinement on. Of the
levels, `full` is bubblewrap with the shim inside, `kernel` is the shim alone, and `none` is neither. Resource limits
apply on every level. Masked files are programs that must not run inside the sandbox.
"""

import functools
import json
import os
import platform
import tempfile
from binascii import b2a_base64
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Literal

from msgspec import Struct, field
from msgspec.structs import replace

from metier.errors import ToolFailed
from metier.tools.process.child_environment import base_interpreter
from metier.tools.process.sandbox import bubblewrap
from metier.tools.process.sandbox.bubblewrap import DEVICES, Reach, list_own, list_startup_modules, list_system
from metier.tools.process.sandbox.protected_paths import MAX_ENTRIES, Closed, ProtectedPaths
from metier.tools.process.sandbox.seccomp import AF_INET, AF_INET6, AF_NETLINK, AF_UNIX, build_filter

_FOLDERS = ("/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin", "/sbin", "/bin")
_PACKAGES = ("/usr/lib", "/usr/lib64", "/usr/libexec", "/usr/local", "/opt")
"""Folders in which packages keep more programs, up to two levels down: another Java, the client behind a wrapper, the
`git` that git starts itself."""
_PROGRAMS = frozenset({"bin", "sbin", "libexec", "git-core"})
_MANY_IN_ONE = frozenset({"busybox", "toybox", "coreutils"})
"""Files that are many programs, chosen by name: masking one would mask them all."""
_NEEDED = ("/bin/bash", "/bin/sh", "/bin/ls")
"""Programs that ordinary work needs. A multi-call program is masked only if none of these is a link to it."""
_SHELL = "/bin/bash"


def list_masked(names: Iterable[str], path: str) -> tuple[Path, ...]:
    """List the files of these programs in `path`, the system's folders and package folders, with their hard links.

    The agent's interpreter and the shell for approved lines are never masked, because nothing would run without them. A
    multi-call program is masked too, unless the system consists of it.
    """
    needed = {Path(program).resolve() for program in (base_interpreter(), _SHELL)}
    own = (entry for entry in path.split(os.pathsep) if entry.startswith("/"))
    folders = list(dict.fromkeys((*own, *_FOLDERS, *_list_package_folders())))
    found: dict[Path, None] = {}
    for name in sorted(names):
        for real in _get_files(name, folders):
            if real not in needed and real.name not in _MANY_IN_ONE:
                found |= dict.fromkeys(_list_links(real, folders))
    for name in _MANY_IN_ONE if found else ():
        if not any(Path(program).resolve().name == name for program in _NEEDED):
            found |= dict.fromkeys(_get_files(name, _FOLDERS))
    return tuple(found)


def _get_files(name: str, folders: Iterable[str]) -> Iterator[Path]:
    for folder in folders:
        file = Path(folder, name)
        if file.is_file():
            yield file.resolve()


@functools.cache
def _list_package_folders() -> tuple[str, ...]:
    """List the package folders with programs, once per process: packages aren't installed between two commands."""
    found: list[str] = []
    inner = list(_PACKAGES)
    for _ in range(3):
        folders = [entry for place in inner for entry in _list_folders(place)]
        found += [path for name, path in folders if name in _PROGRAMS]
        inner = [path for name, path in folders if name not in _PROGRAMS]
    return (*(place for place in _PACKAGES if Path(place).name in _PROGRAMS), *found)


def _list_folders(place: str) -> list[tuple[str, str]]:
    try:
        with os.scandir(place) as entries:
            return [(entry.name, entry.path) for entry in entries if entry.is_dir(follow_symlinks=False)]
    except OSError:
        return []


def _list_links(file: Path, folders: Iterable[str]) -> Iterator[Path]:
    """Yield the file and its hard links in program folders, because a mount covers only one name."""
    yield file
    # A hard link is a second name of the same file: masking only one would leave the program reachable.
    status = file.stat()
    missing = status.st_nlink - 1
    for folder in dict.fromkeys((str(file.parent), *folders)):
        if not missing:
            return
        for path in _list_names(folder, status.st_ino):
            if path != file and path.parent.resolve() == path.parent and path.stat().st_dev == status.st_dev:
                missing -= 1
                yield path


def _list_names(folder: str, inode: int) -> list[Path]:
    try:
        with os.scandir(folder) as entries:
            return [Path(entry.path) for entry in entries if entry.inode() == inode and not entry.is_symlink()]
    except OSError:
        return []


type Level = Literal["full", "kernel", "none"]

SHIM = Path(__file__).with_name("shim.py")
SCRATCH = "metier-"
"""Prefix of a scratch folder's name; the mark of the launch follows."""
ARTIFACTS = "artifacts"
"""The folder of a run that its programs may write to."""
QUARANTINE = "quarantine"
"""The folder of a run to which protected paths are moved."""
_ONLINE = (AF_INET, AF_INET6, AF_NETLINK)
"""Address families for the network. `getaddrinfo` needs netlink to list the machine's addresses."""

type Right = Literal["read", "write", "device"]
type Grant = tuple[str, Right, list[str]]
"""Path, right and exceptions, as in `shim.py`."""


class Launch(Struct, frozen=True, kw_only=True):
    """The prefix of one command, and what its supervisor has to create and remove."""

    mark: str = ""
    """A unique word."""
    level: Level = "none"
    prefix: tuple[str, ...] = ()
    variables: Mapping[str, str] = field(default_factory=dict[str, str])
    """Variables that override the command's environment."""
    scratch: Path | None = None
    """A private folder for temporary files and a home, not created yet."""
    workspace: Path | None = None
    absent: tuple[str, ...] = ()
    """Missing protected paths of the workspace. If the program creates one, it is moved to quarantine."""
    quarantine: Path | None = None


class Confinement(Struct, frozen=True, kw_only=True):
    level: Level = "none"
    bubblewrap: str = ""
    """The program's path, for the level `full`."""
    workspace: Path = Path()
    """With links resolved."""
    records: Path | None = None
    """The runs folder. It is never writable, except for the artifacts of one run."""
    own: tuple[Path, ...] = ()
    """More folders of the agent, such as skills."""
    servers: tuple[Path, ...] = ()
    """Files of MCP servers that run outside the sandbox, protected like the agent's own folders."""
    readable: tuple[Path, ...] = ()
    writable: tuple[Path, ...] = ()
    network: bool = False
    read_only: bool = False
    """Programs can only write their scratch folder, create no sockets and reach no other programs."""
    resources: Mapping[str, int] = field(default_factory=dict[str, int])
    """Limits of each process, by the name of `RLIMIT_…`."""
    masked: tuple[Path, ...] = ()
    """Program files that can't be run or read inside, with links resolved."""
    processes: int = 0
    """Maximum number of concurrent processes of a program; 0 for no limit."""
    quarantine: Path | None = None
    """Folder for protected paths that a program created. Without one, they are renamed in place."""
    protected: ProtectedPaths = field(default_factory=ProtectedPaths)
    """Shared by all programs of a run."""

    def opened(self, *paths: Path) -> "Confinement":
        """Return a copy with more readable paths, such as a program's own files outside the workspace."""
        return replace(self, readable=(*self.readable, *paths))

    def for_reading(self) -> "Confinement":
        """Return the read-only variant: the same files are hidden, and none can be written."""
        return replace(self, read_only=True, readable=(*self.readable, *self.writable), writable=(), network=False)

    def prepare(self, folder: Path, *, mark: str) -> Launch:
        """Prepare the launch of a program in `folder`, which it may read. `mark` is a unique word.

        Raises `ToolFailed` if the workspace is too large to find the paths to protect.
        """
        scratch = locate_scratch(mark, self.workspace)
        if self.level == "none":
            return Launch(mark=mark, scratch=scratch)
        reach = self._get_reach(folder)
        start = [base_interpreter(), "-I", "-S", str(SHIM)]
        if self.level == "kernel":
            orders = _render_orders(_grant_by_kernel(reach, scratch, self.masked), landlock=True, reach=reach)
            prefix, temporary = (*start, orders), scratch
        else:
            orders = _render_orders(_grant_inside(reach), landlock=False, reach=reach)
            arguments = bubblewrap.build_arguments(
                self.bubblewrap, reach, scratch=scratch, folder=folder.absolute(), masked=self.masked
            )
            prefix, temporary = (*arguments, *start, orders), bubblewrap.TEMPORARY
        return Launch(
            mark=mark,
            level=self.level,
            prefix=prefix,
            variables=_build_variables(temporary),
            scratch=scratch,
            workspace=self.workspace,
            # A read-only program creates no protected path, so there is nothing to watch for and to move away.
            absent=() if self.read_only else reach.closed.absent,
            quarantine=self.quarantine,
        )

    def _get_reach(self, folder: Path) -> Reach:
        own = (*self.own, *self.servers, *([self.records] if self.records else []))
        readable = tuple(path for path in dict.fromkeys((*list_own(), *self.readable)) if path.exists())
        writable = tuple(path for path in self.writable if path.exists() and not self._holds_records(path))
        startup = tuple(self.workspace / name for name in list_startup_modules(self.workspace))
        closed = self.protected.find(self.workspace, (*own, *startup), writable=self.writable)
        if not closed.is_complete:
            raise ToolFailed(
                f"The workspace has more than {MAX_ENTRIES:,} files and folders: too many to find its secrets",
                hint="Remove generated files, or start the agent in a smaller folder",
                code="not_started",
            )
        reach = Reach(
            workspace=self.workspace,
            readable=readable,
            writable=writable,
            # Paths that the user opened by name (`sandbox.readable`, `sandbox.writable`) are not protected.
            closed=Closed(
                read_only=tuple(path for path in closed.read_only if path not in writable),
                hidden=tuple(path for path in closed.hidden if path not in {*readable, *writable}),
                absent=closed.absent,
            ),
            sealed=()
            if self.read_only
            else tuple(dict.fromkeys(path.parent for path in startup if path.parent.is_dir())),
            network=self.network and not self.read_only,
            read_only=self.read_only,
        )
        start = folder.absolute()
        return reach if reach.covers(start) else replace(reach, readable=(*reach.readable, start))

    def _holds_records(self, path: Path) -> bool:
        """Return True if a writable path would expose the runs. Only the artifacts of a run may be writable."""
        if self.records is None or (path.name == ARTIFACTS and path.parent.parent == self.records):
            return False
        return path.is_relative_to(self.records) or self.records.is_relative_to(path)


def locate_scratch(mark: str, workspace: Path | None = None) -> Path:
    """Return the folder for temporary files; never in the workspace, where confined programs write."""
    folders = [Path(folder).resolve() for folder in (tempfile.gettempdir(), "/tmp", "/var/tmp")]  # noqa: S108
    outside = [folder for folder in folders if workspace is None or not folder.is_relative_to(workspace)]
    # The mark makes the name unpredictable, so that no other user can put a folder there first.
    return (outside or folders)[0] / f"{SCRATCH}{mark}"


def _grant_by_kernel(reach: Reach, scratch: Path, masked: Iterable[Path]) -> list[Grant]:
    """List the grants for Landlock without mounts. It only grants, so no file can be created next to an exception."""
    unread = [str(path) for path in (*reach.closed.hidden, *masked)]
    # Naming a missing path as an exception denies creating files in its folder, and so protects the path.
    missing = (str(reach.workspace / name) for name in reach.closed.absent)
    closed = [*unread, *(str(path) for path in reach.list_closed()), *missing]
    # Landlock rules apply to resolved folders. `/bin` often is `/usr/bin`, and an exception must hold for both names.
    around = dict.fromkeys(path.resolve() for path in (*list_system(), *reach.readable))
    return [
        *_grant("read", *around, Path("/proc"), but=[str(path) for path in masked]),
        *_grant("read", reach.workspace, but=unread),
        *(() if reach.read_only else _grant("write", reach.workspace, but=closed)),
        *_grant("write", *(path.resolve() for path in reach.writable), but=[str(path) for path in masked]),
        *_grant("write", scratch),
        *_grant("device", *(Path(device) for device in DEVICES)),
    ]


def _grant_inside(reach: Reach) -> list[Grant]:
    """List the grants inside bubblewrap: a second, coarse layer behind the mounts."""
    return [
        *_grant("read", Path("/")),
        *_grant("write", *(() if reach.read_only else (reach.workspace,)), *reach.writable),
        *_grant("write", bubblewrap.TEMPORARY, Path("/dev")),
    ]


def _grant(right: Right, *paths: Path, but: Sequence[str] = ()) -> Iterator[Grant]:
    return ((str(path), right, list(but)) for path in paths)


def _render_orders(grants: list[Grant], *, landlock: bool, reach: Reach) -> str:
    # Landlock doesn't restrict Unix sockets, and without mounts those of the host, such as docker.sock, are in reach.
    families = _ONLINE if landlock else (AF_UNIX, *_ONLINE)
    if landlock and not reach.network:
        families = ()
    filtered = build_filter(platform.machine(), families=families, read_only=reach.read_only)
    return json.dumps(
        {
            "grants": grants,
            "landlock": landlock,
            "seccomp": b2a_base64(filtered, newline=False).decode(),
            "unwritable": str(reach.workspace) if reach.read_only else "",
        }
    )


def _build_variables(folder: Path) -> dict[str, str]:
    home = str(folder / bubblewrap.HOME)
    # Without mounts /etc/gitconfig exists and can't be read, which git takes for a broken configuration.
    return {"HOME": home, "TMPDIR": str(folder), "TMP": str(folder), "TEMP": str(folder), "GIT_CONFIG_NOSYSTEM": "1"}
