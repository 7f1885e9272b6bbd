"""Hold the process of a skill to the effects that its contract declares. Standard library only.

An audit hook sees every file that is opened for writing, every program and every connection. It holds trusted
code to its contract, and finds the contract that forgot something; it is no wall against code that wants out: that is
what trust and the sandbox are for.
"""

import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path

from msgspec import Struct

_WRITE_FLAGS = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
_CHANGES = frozenset(
    {
        *("os.mkdir", "os.remove", "os.rename", "os.rmdir", "os.link", "os.symlink", "os.truncate", "os.chmod"),
        *("os.chown", "os.utime", "os.setxattr", "os.removexattr", "os.mkfifo", "os.mknod"),
    }
)
_PROGRAMS = frozenset(
    {
        *("subprocess.Popen", "os.system", "os.exec", "os.posix_spawn", "os.spawn", "os.fork", "os.forkpty"),
        *("pty.spawn", "os.startfile", "ctypes.dlopen"),
    }
)
_NETWORK = frozenset({"socket.connect", "socket.bind", "socket.sendto", "socket.getaddrinfo", "socket.gethostbyname"})
_ALWAYS = ("/dev/null", "/dev/tty", "/dev/stdout", "/dev/stderr")


class Permitted(Struct, frozen=True, kw_only=True):
    """What the contract allows, in terms of this machine."""

    network: bool = False
    programs: bool = False
    write_below: tuple[str, ...] = ()
    """Folders, resolved."""
    workspace: str = ""
    workspace_patterns: tuple[str, ...] = ()
    """Where in the workspace, if not everywhere; only when it is in `write_below`."""


class UndeclaredEffect(PermissionError):
    """The contract of the skill does not name this effect."""


@dataclass(slots=True)
class Guard:
    permitted: Permitted
    violations: list[str] = field(default_factory=list[str])
    """Also where the skill's code caught the exception."""

    def install(self) -> None:
        """From now on, until the process ends."""
        sys.addaudithook(self.check)

    def check(self, event: str, args: Sequence[object]) -> None:
        judge = self._find_judge(event)
        if judge is None:
            return
        wrong = judge(event, args)
        if wrong:
            self.violations.append(wrong)
            raise UndeclaredEffect(wrong)

    def _find_judge(self, event: str) -> Callable[[str, Sequence[object]], str] | None:
        if event == "open":
            return self._judge_open
        if event in _CHANGES:
            return self._judge_change
        if event in _PROGRAMS and not self.permitted.programs:
            return lambda name, args: (
                f"It starts a program ({name} {_shown(args)}), and side_effects has no runs_programs"
            )
        if event in _NETWORK and not self.permitted.network:
            return lambda name, args: (
                f"It uses the network ({name} {_shown(args[1:])}), and side_effects has no network"
            )
        return self._judge_database if event == "sqlite3.connect" else None

    def _judge_open(self, _event: str, args: Sequence[object]) -> str:
        path, mode, flags = (*args, None, None, None)[:3]
        writes = isinstance(mode, str) and any(letter in mode for letter in "wax+")
        writes = writes or (isinstance(flags, int) and mode is None and bool(flags & _WRITE_FLAGS))
        return self._judge_path(path) if writes else ""

    def _judge_change(self, event: str, args: Sequence[object]) -> str:
        count = 2 if event in ("os.rename", "os.link") else 1
        # Of a symbolic link the second name is the one that is made.
        paths = args[1:2] if event == "os.symlink" else args[:count]
        return next((wrong for path in paths if (wrong := self._judge_path(path))), "")

    def _judge_database(self, _event: str, args: Sequence[object]) -> str:
        return "" if not args or args[0] in (":memory:", "") else self._judge_path(args[0])

    def _judge_path(self, path: object) -> str:
        if isinstance(path, int) or path is None:
            return ""
        name = os.path.realpath(os.fsdecode(path) if isinstance(path, bytes) else str(path))
        if name in _ALWAYS or any(_is_below(name, folder) for folder in self._folders(name)):
            return ""
        return f"It writes to {name!r}, which its contract does not allow"

    def _folders(self, name: str) -> tuple[str, ...]:
        permitted = self.permitted
        if permitted.workspace not in permitted.write_below or not permitted.workspace_patterns:
            return permitted.write_below
        inside = os.path.relpath(name, permitted.workspace)
        is_open = any(fnmatchcase(inside, pattern) for pattern in permitted.workspace_patterns)
        is_open = is_open and not inside.startswith("..")
        return tuple(folder for folder in permitted.write_below if is_open or folder != permitted.workspace)


def _is_below(name: str, folder: str) -> bool:
    return name == folder or name.startswith(folder.rstrip(os.sep) + os.sep)


def _shown(args: Sequence[object]) -> str:
    return repr(args[0])[:120] if args else ""


def resolve(folder: Path | str) -> str:
    return os.path.realpath(folder)
