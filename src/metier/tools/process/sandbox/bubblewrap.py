"""The arguments of bubblewrap for a confinement: a root with nothing in it but what is named. Starts nothing."""

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from metier.skills.trusted_programs import find_trusted_program
from metier.tools.process.sandbox.reach import Reach
from metier.tools.process.sandbox.surroundings import list_system

type Mount = tuple[Path, tuple[str, ...]]
"""Where, and how bubblewrap is told; a link or a folder is a mount here too."""

TEMPORARY = Path("/tmp")  # noqa: S108  the private one inside
EMPTY, HOME, SHARED = "empty", "home", "shm"
"""Folders in the scratch folder of one program."""


def find_bubblewrap(environ: Mapping[str, str], workspace: Path, writable: Iterable[Path] = ()) -> str:
    """The program's path, empty where there is none. `writable` is what programs may write beside the workspace."""
    return find_trusted_program("bwrap", environ, writable=(workspace, *writable))


def build_arguments(
    program: str, reach: Reach, *, scratch: Path, folder: Path, masked: Iterable[Path] = ()
) -> list[str]:
    """All but the command. `scratch` is an empty folder of the host, `folder` where the command starts.

    What is `masked` is a file that can be neither run nor read.
    """
    mounts = dict((*_around(), *_held(reach), *_granted(reach), *_closed(reach, scratch / EMPTY)))
    mounts |= {
        Path("/proc"): ("--proc", "/proc"),
        Path("/dev"): ("--dev", "/dev"),
        Path("/dev/shm"): ("--bind", str(scratch / SHARED), "/dev/shm"),  # noqa: S108
        TEMPORARY: ("--bind", str(scratch), str(TEMPORARY)),
        Path("/var/tmp"): ("--symlink", str(TEMPORARY), "/var/tmp"),  # noqa: S108
    }
    mounts |= {path: ("--ro-bind", "/dev/null", str(path)) for path in masked}
    arguments = [program, "--unshare-all", *(["--share-net"] if reach.network else [])]
    arguments += ["--die-with-parent", "--new-session", "--as-pid-1", "--cap-drop", "ALL"]
    # What lies deeper is mounted later, on top of what it lies in.
    for _, how in sorted(mounts.items(), key=lambda mount: len(mount[0].parts)):
        arguments += how
    return [*arguments, "--remount-ro", "/", "--chdir", str(folder), "--"]


def _around() -> Iterator[Mount]:
    for path in list_system():
        # `/bin` is a link to `usr/bin` on most systems, `resolv.conf` one to a folder that stays outside.
        if path.is_symlink() and path.parent == Path("/"):
            yield path, ("--symlink", str(path.readlink()), str(path))
        else:
            yield path, ("--ro-bind", str(path.resolve()), str(path))


def _held(reach: Reach) -> Iterator[Mount]:
    """The folders around what is closed, mounted onto themselves: a mount cannot be renamed away with what is in it."""
    closed = reach.list_closed()
    for path in closed:
        for folder in path.parents:
            if folder == reach.workspace or any(folder.is_relative_to(other) for other in closed):
                break
            # The supervisor makes those that are missing; where it cannot, the program cannot either.
            yield folder, ("--bind-try", str(folder), str(folder))


def _granted(reach: Reach) -> Iterator[Mount]:
    yield from _binds("--ro-bind", reach.readable)
    yield reach.workspace, ("--bind", str(reach.workspace), str(reach.workspace))
    yield from _binds("--ro-bind", reach.inside(reach.readable))
    yield from _binds("--bind", reach.writable)


def _closed(reach: Reach, empty: Path) -> Iterator[Mount]:
    yield from _binds("--ro-bind", reach.closed.read_only)
    for path in reach.closed.hidden:
        nothing = str(empty) if path.is_dir() else "/dev/null"
        yield path, ("--ro-bind", nothing, str(path))
    for name in reach.closed.absent:
        path = reach.workspace / name
        yield path, ("--ro-bind", str(empty), str(path))


def _binds(how: str, paths: Iterable[Path]) -> Iterator[Mount]:
    for path in paths:
        yield path, (how, str(path.resolve()), str(path))
