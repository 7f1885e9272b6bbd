"""`Confinement`: how a program is enclosed, and the words to start it with. The one seam between policy and processes.

`process.py` asks for a `Launch` and puts its prefix before the command; who runs programs hands a confinement on and
knows nothing else of it. Levels: `full` is bubblewrap with the shim inside, `kernel` the shim alone, `none` neither.
Resource limits hold on every level.
"""

import json
import platform
import tempfile
from binascii import b2a_base64
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import field, replace
from pathlib import Path
from typing import Literal

from metier.dataclass import dataclass
from metier.tools.process.interpreter import base_interpreter
from metier.tools.process.sandbox import bubblewrap
from metier.tools.process.sandbox.reach import Reach
from metier.tools.process.sandbox.seccomp import AF_INET, AF_INET6, AF_NETLINK, AF_UNIX, build_filter
from metier.tools.process.sandbox.surroundings import (
    DEVICES,
    Closed,
    find_closed,
    list_instructions,
    list_missing_instructions,
    list_own,
    list_system,
)

type Level = Literal["full", "kernel", "none"]

SHIM = Path(__file__).with_name("shim.py")
SCRATCH = "metier-"
"""How the name of a scratch folder begins; the mark of the launch follows."""
ARTIFACTS = "artifacts"
"""The folder of a run that its programs write to."""
_ONLINE = (AF_INET, AF_INET6, AF_NETLINK)

type Right = Literal["read", "write", "device"]
type Grant = tuple[str, Right, list[str]]
"""As in `shim.py`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """What to put before one command, and what its supervisor has to make and to clear away."""

    mark: str = ""
    """A word that no other launch has."""
    level: Level = "none"
    prefix: tuple[str, ...] = ()
    variables: Mapping[str, str] = field(default_factory=dict[str, str])
    """Replace those of the same name in the command's environment."""
    scratch: Path | None = None
    """Does not exist yet: a private folder for temporary files and a home."""
    held: tuple[str, ...] = ()
    """Paths of the workspace at which nothing exists and nothing may be made."""
    workspace: Path | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Confinement:
    level: Level = "none"
    bubblewrap: str = ""
    """The program, where the level is `full`."""
    workspace: Path = Path()
    """With links resolved."""
    records: Path | None = None
    """The runs: nothing that a program is given makes them writable, but for the artifacts of one."""
    own: tuple[Path, ...] = ()
    """Further folders of the agent's own, such as skills."""
    servers: tuple[Path, ...] = ()
    """What external servers are started from that run outside of the sandbox: closed as the agent's own folders are."""
    readable: tuple[Path, ...] = ()
    writable: tuple[Path, ...] = ()
    network: bool = False
    resources: Mapping[str, int] = field(default_factory=dict[str, int])
    """By the name of `RLIMIT_…`, for each process."""
    masked: tuple[Path, ...] = ()
    """Files of programs that nothing inside can run or read, with links resolved."""
    processes: int = 0
    """How many a program may have at once; 0 for any number."""

    def opened(self, *paths: Path) -> "Confinement":
        """The same with more to read: what a program is made of, outside the workspace."""
        return replace(self, readable=(*self.readable, *paths))

    def prepare(self, folder: Path, *, mark: str) -> Launch:
        """For a program that starts in `folder`, which it may read. `mark` is a word that no other launch has."""
        scratch = locate_scratch(mark, self.workspace)
        if self.level == "none":
            return Launch(mark=mark, scratch=scratch)
        reach = self._find_reach(folder)
        start = [base_interpreter(), "-I", "-S", str(SHIM)]
        if self.level == "kernel":
            orders = _render_orders(_grant_by_kernel(reach, scratch, self.masked), landlock=True, reach=reach)
            return Launch(
                mark=mark,
                level="kernel",
                prefix=(*start, orders),
                variables=_locate_temporary(scratch),
                scratch=scratch,
            )
        orders = _render_orders(_grant_inside(reach), landlock=False, reach=reach)
        arguments = bubblewrap.build_arguments(
            self.bubblewrap, reach, scratch=scratch, folder=folder.absolute(), masked=self.masked
        )
        return Launch(
            mark=mark,
            level="full",
            prefix=(*arguments, *start, orders),
            variables=_locate_temporary(bubblewrap.TEMPORARY),
            scratch=scratch,
            held=reach.closed.absent,
            workspace=self.workspace,
        )

    def _find_reach(self, folder: Path) -> Reach:
        own = (*self.own, *self.servers, *([self.records] if self.records else []))
        readable = tuple(path for path in dict.fromkeys((*list_own(), *self.readable)) if path.exists())
        writable = tuple(path for path in self.writable if path.exists() and not self._holds_records(path))
        closed = find_closed(self.workspace, own)
        told = list_instructions(self.workspace)
        missing = [
            name for name in list_missing_instructions(self.workspace) if self.workspace / name not in self.writable
        ]
        reach = Reach(
            workspace=self.workspace,
            readable=readable,
            writable=writable,
            closed=Closed(
                read_only=tuple(path for path in dict.fromkeys((*closed.read_only, *told)) if path not in writable),
                hidden=tuple(path for path in closed.hidden if path not in {*readable, *writable}),
                absent=(*closed.absent, *missing),
            ),
            network=self.network,
        )
        start = folder.absolute()
        return reach if reach.covers(start) else replace(reach, readable=(*reach.readable, start))

    def _holds_records(self, path: Path) -> bool:
        """Of the runs only the artifacts of one may be written by what it starts."""
        if self.records is None or (path.name == ARTIFACTS and path.parent.parent == self.records):
            return False
        return path.is_relative_to(self.records) or self.records.is_relative_to(path)


def locate_scratch(mark: str, workspace: Path | None = None) -> Path:
    """Where temporary files are kept; never beneath the workspace, where another confined program could change it."""
    folders = [Path(folder).resolve() for folder in (tempfile.gettempdir(), "/tmp", "/var/tmp")]  # noqa: S108
    outside = [folder for folder in folders if workspace is None or not folder.is_relative_to(workspace)]
    return (outside or folders)[0] / f"{SCRATCH}{mark}"


def _grant_by_kernel(reach: Reach, scratch: Path, masked: Iterable[Path]) -> list[Grant]:
    """Without a file system of its own: only what is named, and a folder with an exception takes no new names."""
    unread = [str(path) for path in (*reach.closed.hidden, *masked)]
    # A folder in which something must not be made takes no new names either: what is absent is closed like the rest.
    closed = [*unread, *(str(path) for path in reach.list_closed())]
    # A rule is about where a path leads, and `/bin` leads to `/usr/bin`: an exception must hold under both names.
    around = dict.fromkeys(path.resolve() for path in (*list_system(), *reach.readable))
    return [
        *_grant("read", *around, Path("/proc"), but=[str(path) for path in masked]),
        *_grant("read", reach.workspace, but=unread),
        *_grant("write", reach.workspace, but=closed),
        *_grant("write", *(path.resolve() for path in reach.writable), but=[str(path) for path in masked]),
        *_grant("write", scratch),
        *_grant("device", *(Path(device) for device in DEVICES)),
    ]


def _grant_inside(reach: Reach) -> list[Grant]:
    """The mounts have decided what is there and what can be written; this says the coarse part of it once more."""
    return [
        *_grant("read", Path("/")),
        *_grant("write", reach.workspace, *reach.writable, bubblewrap.TEMPORARY, Path("/dev")),
    ]


def _grant(right: Right, *paths: Path, but: Sequence[str] = ()) -> Iterator[Grant]:
    return ((str(path), right, list(but)) for path in paths)


def _render_orders(grants: list[Grant], *, landlock: bool, reach: Reach) -> str:
    families = _ONLINE if landlock else (AF_UNIX, *_ONLINE)
    if landlock and not reach.network:
        families = ()
    filtered = build_filter(platform.machine(), families=families)
    return json.dumps({"grants": grants, "landlock": landlock, "seccomp": b2a_base64(filtered, newline=False).decode()})


def _locate_temporary(folder: Path) -> dict[str, str]:
    home = str(folder / bubblewrap.HOME)
    return {"HOME": home, "TMPDIR": str(folder), "TMP": str(folder), "TEMP": str(folder)}
