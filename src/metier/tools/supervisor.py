"""Run one command and answer for every process it starts, until none is left.

Executed as a file by the interpreter alone, between the agent and the command. On Linux it is the reaper of all
descendants, so a process that forks twice, starts a session of its own or ignores signals still becomes its child and
is killed. It imports nothing of Metier and knows no secrets.

    python -I -S supervisor.py CONTROL STATUS GRACE LIMITS SPOOL LOCK COMMAND…

CONTROL is a descriptor: when it is closed, because the agent says so or because the agent died, everything is stopped.
STATUS is a descriptor that receives one line: `EXIT SIGNAL STOPPED LEFT`, or `! ERRNO` if the command did not start.
SPOOL is a path, or nothing: `SPOOL.started` is on disk before the command runs and `SPOOL.ended` after it ended, so
that how it ended is known even if the agent is killed before it could write it down (see `spool.py`).
LOCK is a descriptor that holds a lock until this process ends, or -1.
"""

import ctypes
import os
import select
import signal
import sys
import time
from collections.abc import Callable
from types import FrameType
from typing import NamedTuple

PR_SET_CHILD_SUBREAPER = 36
SWEEP_SECONDS = 10.0
"""How long to try to kill what will not die (a process stuck in the kernel) before saying that it is left."""

NOT_STARTED = 127


class Order(NamedTuple):
    control: int
    status: int
    grace_seconds: float
    limits: str
    spool: str
    lock: int
    command: list[str]


def main(arguments: list[str]) -> int:
    control, status, grace, limits, spool, lock, *command = arguments
    order = Order(int(control), int(status), float(grace), limits, spool, int(lock), command)
    for descriptor in (order.control, order.status, order.lock):
        if descriptor >= 0:
            os.set_inheritable(descriptor, False)  # noqa: FBT003  its second parameter has no name
    return supervise(order)


def supervise(order: Order) -> int:
    """Start the command, wait for its end or for the order to stop, kill the rest, report."""
    become_reaper()
    wake = open_child_alarm()
    note(order.spool, ".started", "")
    child, error = start(order.command, order.limits)
    if error:
        os.waitpid(child, 0)
        note(order.spool, ".ended", f"{NOT_STARTED} 0 0")
        report(order.status, f"! {error}")
        return NOT_STARTED
    release_output()
    ended = wait_for_end(child, order.control, wake)
    stopped = ended is None
    if ended is None:
        ended = stop_politely(child, order.grace_seconds, wake)
    left = kill_everything(child)
    code = os.waitstatus_to_exitcode(ended) if ended is not None else -signal.SIGKILL
    note(order.spool, ".ended", f"{max(code, 0)} {max(-code, 0)} {int(stopped)}")
    report(order.status, f"{max(code, 0)} {max(-code, 0)} {int(stopped)} {left}")
    return 0


def become_reaper() -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def open_child_alarm() -> int:
    """A descriptor that becomes readable whenever a child ended; signals meant for the agent's terminal are ignored."""
    readable, writable = os.pipe()
    os.set_blocking(writable, False)
    os.set_blocking(readable, False)
    signal.set_wakeup_fd(writable, warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, notice_child)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT):
        signal.signal(number, signal.SIG_IGN)
    return readable


def notice_child(number: int, frame: FrameType | None) -> None:
    """A signal without a handler would not reach the wake-up descriptor."""


def start(command: list[str], limits: str) -> tuple[int, int]:
    """Fork and execute in a session of its own. Returns the process id and the error number of a failed start."""
    readable, writable = os.pipe()
    child = os.fork()
    if child == 0:
        become_command(command, limits, writable)
    os.close(writable)
    error = os.read(readable, 16)
    os.close(readable)
    return child, int(error or b"0")


def become_command(command: list[str], limits: str, errors: int) -> None:
    try:
        os.setsid()
        for number in range(1, signal.NSIG):
            restore_signal(number)
        apply_limits(limits)
        os.execvp(command[0], command)  # noqa: S606  an argument list, and there is no shell
    except OSError as error:
        os.write(errors, str(error.errno).encode())
    os._exit(NOT_STARTED)


def restore_signal(number: int) -> None:
    if number in (signal.SIGKILL, signal.SIGSTOP):
        return
    try:
        signal.signal(number, signal.SIG_DFL)
    except (OSError, ValueError):
        return  # a number that the C library keeps for itself


def apply_limits(limits: str) -> None:
    """`limits` is `cpu=60,nofile=256`: names of `RLIMIT_…`, soft and hard alike, never above the limit in force."""
    if not limits:
        return
    import resource  # noqa: PLC0415  not on every platform, and only with limits

    for item in limits.split(","):
        name, _, value = item.partition("=")
        kind: int = getattr(resource, f"RLIMIT_{name.upper()}")
        hard = resource.getrlimit(kind)[1]
        wanted = int(value) if hard == resource.RLIM_INFINITY else min(int(value), hard)
        resource.setrlimit(kind, (wanted, wanted))


def release_output() -> None:
    """Let go of the command's streams: they must end when the command's processes end."""
    nothing = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1, 2):
        os.dup2(nothing, stream)
    os.close(nothing)


def wait_for_end(child: int, control: int, wake: int) -> int | None:
    """The wait status of the command, or None when the control descriptor was closed first."""
    poll = select.poll()
    poll.register(control, select.POLLIN | select.POLLHUP)
    poll.register(wake, select.POLLIN)
    while True:
        ended = reap(child)
        if ended is not None:
            return ended
        ready = {descriptor for descriptor, _ in poll.poll()}
        if wake in ready:
            drain(wake)
        if control in ready and not os.read(control, 16):
            return reap(child)


def stop_politely(child: int, grace_seconds: float, wake: int) -> int | None:
    """Ask every process to end, and wait a little. What ignores it is killed by the caller."""
    for process in descendants(child):
        send(process, signal.SIGTERM)
    until = time.monotonic() + grace_seconds
    ended = reap(child)
    while ended is None and (left := until - time.monotonic()) > 0:
        select.select([wake], [], [], left)
        drain(wake)
        ended = reap(child)
    return ended


def drain(wake: int) -> None:
    try:
        while os.read(wake, 4096):
            pass
    except BlockingIOError:
        return


def reap(child: int) -> int | None:
    """Collect every ended process; the wait status of the command if it is among them."""
    ended: int | None = None
    while True:
        try:
            process, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return ended
        if process == 0:
            return ended
        if process == child:
            ended = status


def kill_everything(child: int) -> int:
    """Freeze, kill and reap until nothing is left. Returns the number of processes that would not die."""
    until = time.monotonic() + SWEEP_SECONDS
    while True:
        frozen = freeze(lambda: descendants(child))
        for process in frozen:
            send(process, signal.SIGKILL)
        reap(child)
        remaining = descendants(child)
        if not remaining or time.monotonic() > until:
            return len(remaining)
        time.sleep(0.001)


def freeze(find: Callable[[], set[int]]) -> set[int]:
    """Stop every process first, so that none can fork while the others are killed."""
    frozen: set[int] = set()
    while fresh := find() - frozen:
        for process in fresh:
            send(process, signal.SIGSTOP)
        frozen |= fresh
    return frozen


def send(process: int, number: int) -> None:
    try:
        os.kill(process, number)
    except (ProcessLookupError, PermissionError):
        return


def descendants(child: int) -> set[int]:
    """Every living process below this one. Without `/proc`: the command's own process group, by its negative id."""
    try:
        entries = os.listdir("/proc")  # noqa: PTH208  pathlib is not worth its import here
    except OSError:
        return {-child} if group_lives(child) else set()
    children: dict[int, list[int]] = {}
    for entry in entries:
        if entry.isdigit() and (parent := living_parent(entry)) is not None:
            children.setdefault(parent, []).append(int(entry))
    found: set[int] = set()
    unseen = [os.getpid()]
    while unseen:
        fresh = children.get(unseen.pop(), [])
        found.update(fresh)
        unseen.extend(fresh)
    return found


def living_parent(process: str) -> int | None:
    """The parent of a process; None when it is gone. Zombies count: they are reaped when their parent dies."""
    try:
        with open(f"/proc/{process}/stat", "rb") as file:  # noqa: PTH123
            fields = file.read().rpartition(b")")[2].split()
    except OSError:
        return None
    return int(fields[1]) if fields else None


def group_lives(child: int) -> bool:
    try:
        os.killpg(child, 0)
    except (ProcessLookupError, PermissionError):
        return False
    return True


def note(spool: str, suffix: str, text: str) -> None:
    """Put a file on disk whole or not at all, and the folder's entry for it too."""
    if not spool:
        return
    temporary = f"{spool}{suffix}.{os.getpid()}"
    file = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    os.write(file, text.encode())
    os.fsync(file)
    os.close(file)
    os.rename(temporary, spool + suffix)  # noqa: PTH104  pathlib is not worth its import here
    folder = os.open(os.path.dirname(spool) or ".", os.O_RDONLY)  # noqa: PTH120
    os.fsync(folder)
    os.close(folder)


def report(status: int, line: str) -> None:
    try:
        os.write(status, line.encode() + b"\n")
    except OSError:
        return  # the agent is gone


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
