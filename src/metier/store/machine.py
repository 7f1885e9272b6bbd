"""Machine identity, boot id, monotonic clock and process liveness, for leases and recovery.

Leases don't use wall time: they must neither expire early nor last forever because the clock was set.
"""

import hashlib
import os
import socket
import sys
import time
from functools import cache
from pathlib import Path
from typing import Protocol

from msgspec import Struct

_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
_MACHINE_ID = Path("/etc/machine-id")


class MachineIdentity(Struct, frozen=True, kw_only=True):
    """The identity of a machine and of its current boot."""

    machine: str
    """A hash of the machine id, which clones of an image share, and the host name, which other machines may share."""
    boot: str
    """Empty if the system doesn't provide it."""


@cache
def identify_machine() -> MachineIdentity:
    """Return the identity of this machine, the same for all runs of this process."""
    # Hashed: machine-id(5) asks to keep the machine id out of files that leave the machine.
    named = f"{_read(_MACHINE_ID).strip()}/{socket.gethostname()}"
    boot = _read(_BOOT_ID).strip() if sys.platform == "linux" else ""
    return MachineIdentity(machine=hashlib.sha256(named.encode()).hexdigest()[:16], boot=boot)


class Machine(Protocol):
    """Clock and processes of one machine. All its processes see the same `boot_id` and `uptime`."""

    def boot_id(self) -> str: ...

    def uptime(self) -> float:
        """Return the seconds since boot, including time asleep. They never decrease within one boot."""
        ...

    def process(self) -> str:
        """Return a name of this process with which other processes can check whether it still exists."""
        ...

    def is_gone(self, process: str) -> bool:
        """Return True only if the process has certainly ended."""
        ...


class SystemMachine:
    """Linux: CLOCK_BOOTTIME, the kernel's boot id and /proc. Elsewhere: wall time, and all processes count as alive."""

    def __init__(self) -> None:
        self._boot_id = _read(_BOOT_ID).strip() if sys.platform == "linux" else ""
        self._own = (0, "")
        """Process id and name of the last caller. A forked process has another one."""

    def boot_id(self) -> str:
        return self._boot_id or "wall"

    def uptime(self) -> float:
        return read_uptime() if self._boot_id else time.time()

    def process(self) -> str:
        pid = os.getpid()
        if self._own[0] != pid:
            self._own = (pid, f"{_pid_namespace()}/{pid}/{_started(pid)}")
        return self._own[1]

    def is_gone(self, process: str) -> bool:
        if process == self.process():
            return False  # the common case, twice a second for every driver: avoids reading /proc, which is slow
        namespace, _, rest = process.partition("/")
        pid, _, started = rest.partition("/")
        if not namespace or namespace != _pid_namespace() or not pid.isdecimal() or not started:
            return False  # another container, or a system without /proc: unknown
        return _started(int(pid)) != started


def read_uptime() -> float:
    """Return a monotonic time that also advances while the process is stopped or the machine sleeps."""
    return time.clock_gettime(time.CLOCK_BOOTTIME) if sys.platform == "linux" else time.time()


def _pid_namespace() -> str:
    try:
        # A process id means nothing in another container, even if both share the runs folder and the kernel's boot id.
        return str(Path("/proc/self/ns/pid").readlink())
    except OSError:
        return ""


def _started(pid: int) -> str:
    # The start time distinguishes processes with a reused id. Zombies (Z) and dead processes (X) count as ended.
    # The name before the last `)` may contain spaces and parentheses. `words[19]` is field 22 of proc(5).
    _, _, fields = _read(Path(f"/proc/{pid}/stat")).rpartition(")")
    words = fields.split()
    return "" if len(words) < 20 or words[0] in "ZX" else words[19]


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
