"""Run one command and all processes that it starts, until none is left.

Executed as a file by the bare interpreter, between the agent and the command. On Linux it is the reaper of all
descendants, so a process that forks twice, starts its own session or ignores signals still becomes its child and is
killed. It imports only `scratch.py` and `quarantine.py` of Metier, and little of the standard library, because it
starts with each command: importing `typing` alone would take a third of its time. It starts no other program.

    python -I -S supervisor.py CONTROL STATUS ENVIRON GRACE LIMITS SPOOL LOCK PROCESSES LEVEL SCRATCH RECORD HOLD
        COMMAND…

CONTROL is a descriptor. When it is closed, by the agent or because the agent died, everything is stopped.
STATUS is a descriptor that receives one line: `EXIT SIGNAL STOPPED LEFT`, or `! ERRNO` if the command did not start.
STOPPED is 0, 1 for an order to stop or a failure after the agent died, or 2 for too many processes. The new locations
of protected paths that the command created follow, each after a zero byte.
ENVIRON is a descriptor of a file with the command's environment: `NAME=VALUE`, separated by zero bytes. This process
and the sandbox have their own: a variable of the command (`LD_PRELOAD`) must not affect a program outside the sandbox.
SPOOL is a path, or empty. `SPOOL.started` is on disk before the command runs and `SPOOL.ended` after it ended, so that
its outcome is known even if the agent is killed before it could record it (see `spool.py`).
LOCK is a descriptor that holds a lock until this process ends, or -1.
PROCESSES is the maximum number of concurrent processes, or 0 for no limit. With more, everything is stopped.
LEVEL is the sandbox level of COMMAND: `none`, `kernel` or `full` (see `sandbox/confinement.py`). This process stays
outside the sandbox.
SCRATCH is a folder that is created for the command, locked while this process lives, and then removed. It is left only
if this process is killed (see `clear_scratch` in `run.py`).
RECORD is the record of a confined command (see `quarantine.py`), which is settled at its end, or empty. HOLD is a
descriptor that locks it until then, or -1.
"""

import ctypes
import os
import select
import signal
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from types import FrameType

if __name__ == "__main__":
    # Without site packages, only the folder that contains this package is added, after the standard library.
    sys.path.append(__file__.rpartition("/metier/tools/")[0])

from metier.definitions.files.quarantine import settle
from metier.tools.process.scratch import make_scratch, remove_tree

PR_SET_CHILD_SUBREAPER = 36
REPORT_VARIABLE = "METIER_REPORT"
"""Tells the shim where to report that the command cannot be started, and how it ended."""
WATCH_SECONDS = 0.2
"""Interval for counting the processes."""
SWEEP_SECONDS = 10.0
"""Time to keep killing processes that are stuck in the kernel before they are reported as left."""

NOT_STARTED = 127
ORDERED, CROWDED = 1, 2
THREADS_EACH = 4
"""Number of threads for each process that a command may have."""


class Order:
    """The parsed arguments."""

    def __init__(self, arguments: list[str]) -> None:
        control, status, environ, grace, limits, spool, lock, *rest = arguments
        processes, level, scratch, record, hold, *command = rest
        self.control = int(control)
        self.status = int(status)
        self.environ = int(environ)
        self.grace_seconds = float(grace)
        self.limits = limits
        self.spool = spool
        self.lock = int(lock)
        self.processes = int(processes)
        self.level = level
        self.scratch = scratch
        self.record = record
        self.hold = int(hold)
        self.command = command


def main(arguments: list[str]) -> int:
    order = Order(arguments)
    # A command that inherited them could forge the report, or hold the locks after this process has ended.
    for descriptor in (order.control, order.status, order.environ, order.lock, order.hold):
        if descriptor >= 0:
            os.set_inheritable(descriptor, False)  # noqa: FBT003  its second parameter has no name
    return supervise(order)


def supervise(order: Order) -> int:
    """Prepare, run and clean up, then report the end."""
    # Before the first fork: orphans of the command then become children of this process, not of init, and are found.
    become_reaper()
    wake = open_child_alarm()
    own = make_scratch(order.scratch, order.level)
    # On disk before the command runs: without this note, recovery assumes that the effect never started.
    note(order.spool, ".started", "")
    started = start(order)
    if started.error:
        os.waitpid(started.child, 0)
    left = 0
    ending, line = f"{NOT_STARTED} 0 0", f"! {started.error}"
    if not started.error:
        release_output()
        ending, left = run(order, started, wake)
        line = f"{ending} {left}"
    moved = settle(order.record) if order.record else []
    # Before the report: if the agent dies between the two, its successor reads the note.
    note(order.spool, ".ended", ending)
    report(order.status, "\0".join([line, *moved]))
    # After the report, so that the agent does not wait for it.
    with suppress(OSError):
        remove_tree(order.scratch)
    os.close(own)
    return NOT_STARTED if started.error else 0


def run(order: Order, started: "Started", wake: int) -> tuple[str, int]:
    """Wait for the end or an order to stop, then kill the rest. Returns the ending and the number of processes left."""
    child = started.child
    ended, why = wait_for_end(child, order, wake)
    if ended is None and why == ORDERED:
        ended = stop_politely(child, order, wake)
    left = kill_everything(child)
    # With bubblewrap, only the first process inside the sandbox knows how the command itself ended.
    inner = os.read(started.inner, 16) if started.inner >= 0 else b""
    if inner and not why:
        ended = int(inner)
    code = os.waitstatus_to_exitcode(ended) if ended is not None else -signal.SIGKILL
    if code and not why and is_closed(order.control):
        # The agent died first, and with it the reader of the command's output, so the failure may be a broken pipe.
        why = ORDERED
    return f"{max(code, 0)} {max(-code, 0)} {why}", left


def become_reaper() -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def open_child_alarm() -> int:
    """Return a descriptor that becomes readable when a child ends. Signals from the agent's terminal are ignored."""
    readable, writable = os.pipe()
    # The signal handler writes to the pipe: a full one must not block it, and one byte is enough to wake the poll.
    os.set_blocking(writable, False)
    os.set_blocking(readable, False)
    signal.set_wakeup_fd(writable, warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, notice_child)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT):
        signal.signal(number, signal.SIG_IGN)
    return readable


def notice_child(number: int, frame: FrameType | None) -> None:
    """Do nothing. Without a handler, the signal would not be written to the wake-up descriptor."""


class Started:
    """A started child. `error` is the error number of a failed start. The first process inside a sandbox reports the
    command's wait status at `inner`, unless that is -1.
    """

    def __init__(self, child: int, error: int, inner: int) -> None:
        self.child = child
        self.error = error
        self.inner = inner


def start(order: Order) -> Started:
    """Fork and execute the command in its own session."""
    readable, writable = os.pipe()
    inner, theirs = os.pipe() if order.level == "full" else (-1, -1)
    child = os.fork()
    if child == 0:
        become_command(order, errors=writable, inner=theirs)
    for descriptor in (writable, order.environ, theirs):
        if descriptor >= 0:
            os.close(descriptor)
    # The other end is closed on exec, so nothing to read means that the command was started.
    error = os.read(readable, 16)
    os.close(readable)
    return Started(child, int(error or b"0"), inner)


def become_command(order: Order, *, errors: int, inner: int) -> None:
    try:
        # In its own session, it gets no signals of the agent's terminal, and its group can be killed at once.
        os.setsid()
        # Ignored signals stay ignored after exec: Python ignores SIGPIPE, and this process those of the terminal.
        for number in range(1, signal.NSIG):
            restore_signal(number)
        apply_limits(add_process_limit(order.limits, order.processes))
        environ: dict[str, str] = dict(os.environ)
        if order.level == "none":
            environ = read_environ(order.environ)
        else:
            # The shim inside the sandbox gives the command its environment; bubblewrap never sees it.
            environ[REPORT_VARIABLE] = f"{errors}:{inner}:{order.environ}"
            for descriptor in (errors, inner, order.environ):
                if descriptor >= 0:
                    os.set_inheritable(descriptor, True)  # noqa: FBT003  its second parameter has no name
        os.execvpe(order.command[0], order.command, environ)  # noqa: S606  an argument list, and there is no shell
    except OSError as error:
        os.write(errors, str(error.errno).encode())
    # Not `sys.exit`: the fork must not go back into the caller's code or run exit handlers.
    os._exit(NOT_STARTED)


def read_environ(descriptor: int) -> dict[str, str]:
    content = os.pread(descriptor, os.fstat(descriptor).st_size, 0)
    pairs = (os.fsdecode(item).partition("=") for item in content.split(b"\0") if item)
    return {name: value for name, _, value in pairs}


def restore_signal(number: int) -> None:
    if number in (signal.SIGKILL, signal.SIGSTOP):
        return
    try:
        signal.signal(number, signal.SIG_DFL)
    except (OSError, ValueError):
        return  # reserved by the C library


def add_process_limit(limits: str, processes: int) -> str:
    """Add RLIMIT_NPROC as a second defense, against programs that fork faster than they are counted.

    The kernel counts all threads of the user, so the limit is the current number on the machine plus the allowed ones.
    It has no effect for root.
    """
    if not processes or os.geteuid() == 0:
        return limits
    try:
        with open("/proc/loadavg", "rb") as file:  # noqa: PTH123
            # The fourth field is `running/all`, in threads of the whole machine.
            present = int(file.read().split()[3].partition(b"/")[2])
    except (OSError, IndexError, ValueError):
        return limits
    return ",".join(filter(None, [limits, f"nproc={present + processes * THREADS_EACH}"]))


def apply_limits(limits: str) -> None:
    """Apply limits such as `cpu=60,nofile=256`, by the names of `RLIMIT_…`; never above the current hard limit."""
    if not limits:
        return
    import resource  # noqa: PLC0415  not on every platform, and only with limits

    for item in limits.split(","):
        name, _, value = item.partition("=")
        kind: int = getattr(resource, f"RLIMIT_{name.upper()}")
        hard = resource.getrlimit(kind)[1]
        wanted = int(value) if hard == resource.RLIM_INFINITY else min(int(value), hard)
        # The hard limit too, or the command could raise its own.
        resource.setrlimit(kind, (wanted, wanted))


def release_output() -> None:
    """Close this process's copies of the command's streams, so that these end with the command's processes."""
    nothing = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1, 2):
        os.dup2(nothing, stream)
    os.close(nothing)


def wait_for_end(child: int, order: Order, wake: int) -> tuple[int | None, int]:
    """Wait for the command. Returns its wait status and 0, or None and the reason to stop it."""
    interval = int(WATCH_SECONDS * 1000) if order.processes else None
    poll = select.poll()
    poll.register(order.control, select.POLLIN | select.POLLHUP)
    poll.register(wake, select.POLLIN)
    while True:
        ended = reap(child)
        if ended is not None:
            return ended, 0
        ready = {descriptor for descriptor, _ in poll.poll(interval)}
        if wake in ready:
            drain(wake)
        if order.control in ready and not os.read(order.control, 16):
            # The command may have ended at the same moment, which is not a stop.
            ended = reap(child)
            return ended, 0 if ended is not None else ORDERED
        if order.processes and count(order.processes) > order.processes:
            return None, CROWDED


def is_closed(control: int) -> bool:
    """Return True if the other end of CONTROL is closed."""
    readable, _, _ = select.select([control], [], [], 0)
    return bool(readable) and not os.read(control, 16)


def stop_politely(child: int, order: Order, wake: int) -> int | None:
    """Ask every process to end, and wait for the grace time. The caller kills the rest."""
    for process in descendants(child):
        # If the outer process of the sandbox ended, everything inside would be killed at once.
        if not (order.level == "full" and process == child):
            send(process, signal.SIGTERM)
    until = time.monotonic() + order.grace_seconds
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
    """Reap all ended processes. Returns the command's wait status if it is among them."""
    ended: int | None = None
    while True:
        try:
            # -1, because as the reaper this process also gets the orphans of the command.
            process, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return ended
        if process == 0:
            return ended
        if process == child:
            ended = status


def kill_everything(child: int) -> int:
    """Stop, kill and reap until nothing is left. Returns the number of processes that can't be killed."""
    if sys.platform == "linux" and not has_children():
        return 0  # as the reaper, this process would be the parent of any remaining descendant
    kill_at_once(child)
    until = time.monotonic() + SWEEP_SECONDS
    while True:
        # Listed again each time: a process that was just being forked is not in the first listing.
        frozen = freeze(lambda: descendants(child))
        for process in frozen:
            send(process, signal.SIGKILL)
        reap(child)
        remaining = descendants(child)
        if not remaining or time.monotonic() > until:
            return len(remaining)
        # A killed process stays listed until the kernel has ended it.
        time.sleep(0.001)


def has_children() -> bool:
    try:
        # WNOWAIT leaves the status of an ended child for `reap`.
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return False
    return True


def kill_at_once(child: int) -> None:
    """Kill the command's process group in one call, in case it forks faster than its processes can be listed.

    In a sandbox with a process namespace, kill its first process, with which the kernel ends all others.
    """
    if not read_children(os.getpid()):
        return  # no process is left, and the group's number may belong to another program by now
    for process in read_children(child):
        send(process, signal.SIGKILL)
    try:
        os.killpg(child, signal.SIGKILL)
    except (ProcessLookupError, PermissionError):
        return


def freeze(find: Callable[[], set[int]]) -> set[int]:
    """Stop all processes first, so that none can fork while the others are killed."""
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
    """List all living descendants of this process; without `/proc`, the command's process group by its negative ID."""
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
    """Return the parent of a process; None if it is gone. Zombies count: they are reaped when their parent dies."""
    try:
        with open(f"/proc/{process}/stat", "rb") as file:  # noqa: PTH123
            # After the last parenthesis, because the name in parentheses may contain blanks and parentheses.
            fields = file.read().rpartition(b")")[2].split()
    except OSError:
        return None
    return int(fields[1]) if fields else None


def count(enough: int) -> int:
    """Count the descendants of this process, exactly only up to `enough`."""
    if not os.path.exists(f"/proc/self/task/{os.getpid()}/children"):  # noqa: PTH110
        return len(descendants(0))  # a kernel without these files
    found, unseen = 0, [os.getpid()]
    while unseen and found <= enough:
        children = read_children(unseen.pop())
        found += len(children)
        unseen += children
    return found


def read_children(process: int) -> list[int]:
    """List the children of a process's first thread; empty if it is gone, or if the kernel lacks these files."""
    try:
        # Much cheaper than reading the whole of `/proc` for every count.
        with open(f"/proc/{process}/task/{process}/children", "rb") as file:  # noqa: PTH123
            return [int(child) for child in file.read().split()]
    except OSError:
        return []


def group_lives(child: int) -> bool:
    try:
        os.killpg(child, 0)
    except (ProcessLookupError, PermissionError):
        return False
    return True


def note(spool: str, suffix: str, text: str) -> None:
    """Write a note atomically, and sync the file and its folder."""
    if not spool:
        return
    temporary = f"{spool}{suffix}.{os.getpid()}"
    file = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    os.write(file, text.encode())
    os.fsync(file)
    os.close(file)
    os.rename(temporary, spool + suffix)  # noqa: PTH104  pathlib is not worth its import here
    # Without this, a power cut could lose the new name although the content is on disk.
    folder = os.open(os.path.dirname(spool) or ".", os.O_RDONLY)  # noqa: PTH120
    os.fsync(folder)
    os.close(folder)


def report(status: int, line: str) -> None:
    try:
        os.write(status, os.fsencode(line) + b"\n")
    except OSError:
        return  # the agent is gone


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
