"""Workers that start themselves, for runs left to workers on a machine where none was started by hand.

One at a time per queue and runs folder, known by a lock file; of several that start at once, one stays. The worker
releases the lock before it looks into the queue a last time, and a command looks at the lock after its run is in the
store: so either the worker finds the run, or the command finds the lock free and starts another one.
"""

import os
import sys
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from filelock import FileLock, Timeout

from metier.programs.launcher import WORKER, start_in_background, use_own_program
from metier.programs.search import drop_writable_paths
from metier.runtime.host import Host

LOG = "worker.log"
_MAX_LOG_BYTES = 1_000_000
_PROGRAM = "from metier.cli.main import main; main()"


def can_start_worker(host: Host) -> bool:
    """Return True if the runs are in a file of this machine and the settings allow it."""
    return host.settings.worker.autostart and host.settings.store.backend == "sqlite" and os.name == "posix"


def start_worker(host: Host, *, config: Path | None = None) -> bool:
    """Start a worker in the background unless a self-started one exists. False if nothing was started."""
    if not can_start_worker(host):
        return False
    with _try_lock(host) as is_free:
        if not is_free:
            return False
    # -P, and no import path in the workspace: a `sitecustomize.py` that a program left there is not run.
    # PATH stays: programs inside the sandbox are found by it, and Metier searches its own by itself.
    environment = drop_writable_paths(host.environ, writable=(host.workspace,), keep=("PATH", "VIRTUAL_ENV"))
    worker = use_own_program(WORKER, sys.executable, "-P", "-c", _PROGRAM, environment=environment)
    arguments = ["worker", "--until-idle", *(["--config", str(config)] if config is not None else [])]
    try:
        output = open_log(host.runs / LOG)
    except OSError:
        return False
    with output:
        start_in_background(worker, *arguments, folder=host.workspace, output=output)
    return True


def open_log(log: Path) -> BinaryIO:
    """Open the log, not through a link: the folder may have come with a clone."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    stream = os.fdopen(os.open(log, flags, 0o600), "ab")
    if os.fstat(stream.fileno()).st_size >= _MAX_LOG_BYTES:
        stream.truncate(0)
    return stream


@contextmanager
def alone(host: Host) -> Generator[bool]:
    """Hold the lock of self-started workers for a while; False if another one has it."""
    with _try_lock(host) as is_free:
        yield is_free


@contextmanager
def _try_lock(host: Host) -> Generator[bool]:
    host.runs.mkdir(parents=True, exist_ok=True)
    lock = FileLock(host.runs / f".worker-{host.settings.worker.queue}.lock", timeout=0, fallback_to_soft=False)
    try:
        lock.acquire()
    except Timeout:
        yield False
        return
    try:
        yield True
    finally:
        lock.release()
