"""What leases and recovery need to know of this machine: which one and which boot it is, a clock that cannot be set,
and which processes are still alive.

Not wall time: a lease must neither end early nor last for ever because the clock was corrected.
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
    """Tells one machine, and one boot of it, from another."""

    machine: str
    """A hash of the machine id and the host name: images share the first, and the second alone is easily the same."""
    boot: str
    """Empty where the system does not tell."""


@cache
def identify_machine() -> MachineIdentity:
    """The same while this process lasts, for all its runs."""
    # Hashed: the machine id is not for files that are passed on (machine-id(5)).
    named = f"{_read(_MACHINE_ID).strip()}/{socket.gethostname()}"
    boot = _read(_BOOT_ID).strip() if sys.platform == "linux" else ""
    return MachineIdentity(machine=hashlib.sha256(named.encode()).hexdigest()[:16], boot=boot)


class Machine(Protocol):
    """Processes of one machine agree on `boot_id` and `uptime`; after a restart `boot_id` is another one."""

    def boot_id(self) -> str: ...

    def uptime(self) -> float:
        """Seconds that only grow within one boot, time asleep included."""
        ...

    def process(self) -> str:
        """Names this process, so that another one can tell whether it is still there."""
        ...

    def is_gone(self, process: str) -> bool:
        """True only when it is certain that the process has ended."""
        ...


class SystemMachine:
    """Linux: CLOCK_BOOTTIME, the kernel's boot id and /proc. Elsewhere wall time, and every process counts as alive."""

    def __init__(self) -> None:
        self._boot_id = _read(_BOOT_ID).strip() if sys.platform == "linux" else ""
        self._own = (0, "")
        """The process that asked last, and its name: a fork has another one."""

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
            return False  # the common case: a driver looks at its own run twice a second, and /proc is slow to read
        namespace, _, rest = process.partition("/")
        pid, _, started = rest.partition("/")
        if not namespace or namespace != _pid_namespace() or not pid.isdecimal() or not started:
            return False  # another container, or a system without /proc: nothing is known
        return _started(int(pid)) != started


def read_uptime() -> float:
    """Seconds that continue while this process is stopped and while the machine is asleep."""
    return time.clock_gettime(time.CLOCK_BOOTTIME) if sys.platform == "linux" else time.time()


def _pid_namespace() -> str:
    try:
        return str(Path("/proc/self/ns/pid").readlink())
    except OSError:
        return ""


def _started(pid: int) -> str:
    """When the process started, in ticks since boot; empty when there is none, or only the remains of one."""
    _, _, fields = _read(Path(f"/proc/{pid}/stat")).rpartition(")")
    words = fields.split()
    return "" if len(words) < 20 or words[0] in "ZX" else words[19]


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
