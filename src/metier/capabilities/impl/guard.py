"""Limits the process of a skill to the effects that its contract declares. Standard library only.

An audit hook sees every file opened for writing, every program and every connection. It catches honest mistakes in
trusted code and in contracts. It does not stop hostile code: trust and the sandbox do.
"""

import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path

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
        # Native code can do anything without raising an audit event.
        *("pty.spawn", "os.startfile", "ctypes.dlopen"),
    }
)
_NETWORK = frozenset({"socket.connect", "socket.bind", "socket.sendto", "socket.getaddrinfo", "socket.gethostbyname"})
_ALWAYS = ("/dev/null", "/dev/tty", "/dev/stdout", "/dev/stderr")


# Dataclasses, not Structs: the interpreter of a skill starts faster without msgspec.
@dataclass(frozen=True, slots=True, kw_only=True)
class Permitted:
    """Effects that the contract allows, as paths of this machine."""

    network: bool = False
    programs: bool = False
    write_below: tuple[str, ...] = ()
    """Folders, resolved."""
    workspace: str = ""
    workspace_patterns: tuple[str, ...] = ()
    """Patterns of workspace paths that may be written; empty means all. Applies if `write_below` has the workspace."""


class UndeclaredEffect(PermissionError):
    """The skill's contract does not declare this effect."""


@dataclass(slots=True)
class Guard:
    permitted: Permitted
    violations: list[str] = field(default_factory=list[str])
    """Recorded because the skill's code may catch the exception."""

    def install(self) -> None:
        # An audit hook cannot be removed: it holds until the process ends.
        sys.addaudithook(self.check)

    def check(self, event: str, args: Sequence[object]) -> None:
        find_violation = self._find_check(event)
        if find_violation is not None and (violation := find_violation(event, args)):
            self.violations.append(violation)
            raise UndeclaredEffect(violation)

    def _find_check(self, event: str) -> Callable[[str, Sequence[object]], str] | None:
        if event == "open":
            return self._check_open
        if event in _CHANGES:
            return self._check_change
        if event in _PROGRAMS and not self.permitted.programs:
            return lambda name, args: (
                f"It starts a program ({name} {_shorten(args)}), but side_effects has no runs_programs"
            )
        if event in _NETWORK and not self.permitted.network:
            return lambda name, args: (
                f"It uses the network ({name} {_shorten(args[1:])}), but side_effects has no network"
            )
        # SQLite opens its files in C, without an `open` event.
        return self._check_database if event == "sqlite3.connect" else None

    def _check_open(self, _event: str, args: Sequence[object]) -> str:
        # `open` gives a mode. `os.open` gives none, only flags.
        path, mode, flags = (*args, None, None, None)[:3]
        writes = isinstance(mode, str) and any(letter in mode for letter in "wax+")
        writes = writes or (isinstance(flags, int) and mode is None and bool(flags & _WRITE_FLAGS))
        return self._check_path(path) if writes else ""

    def _check_change(self, event: str, args: Sequence[object]) -> str:
        count = 2 if event in ("os.rename", "os.link") else 1
        # `symlink(target, link)` creates its second path; the target is only text.
        paths = args[1:2] if event == "os.symlink" else args[:count]
        return next((violation for path in paths if (violation := self._check_path(path))), "")

    def _check_database(self, _event: str, args: Sequence[object]) -> str:
        return "" if not args or args[0] in (":memory:", "") else self._check_path(args[0])

    def _check_path(self, path: object) -> str:
        # A descriptor was checked when it was opened.
        if isinstance(path, int) or path is None:
            return ""
        # A link in a writable folder may lead out of it.
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


def _shorten(args: Sequence[object]) -> str:
    return repr(args[0])[:120] if args else ""


def resolve(folder: Path | str) -> str:
    return os.path.realpath(folder)
