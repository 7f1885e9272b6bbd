"""Waking workers for background runs: through the configured broker, or by starting a worker on this machine.

At most one self-started worker runs per queue and runs folder; it holds a lock file. The worker releases the lock
before it checks the queue for the last time, and a command checks the lock after it has stored its run. So either the
worker finds the run, or the command finds the lock free and starts another worker.
"""

import importlib.util
import os
import sys
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from filelock import FileLock, Timeout

from metier.errors import UsageError
from metier.extras import hint_extra
from metier.programs.launcher import WORKER, start_in_background, use_own_program
from metier.programs.search import drop_writable_paths
from metier.runtime.host import Host
from metier.runtime.queue.broker import Broker, find_address
from metier.settings.sections import WorkerOptions

LOG = "worker.log"
_MAX_LOG_BYTES = 1_000_000
_PROGRAM = "from metier.cli.main import main; main()"


def find_broker(options: WorkerOptions, environ: Mapping[str, str]) -> Broker | None:
    """Return the configured broker; None if workers poll the store. Raises `UsageError`."""
    address = find_address(options, environ)
    if address is None:
        return None
    if importlib.util.find_spec("celery") is None:
        raise UsageError("A broker is configured, and Celery is not installed", hint=hint_extra("worker"))
    # Imported here: Celery is optional, and its import takes twice as long as the rest of a short command.
    from metier.runtime.queue.celery_broker import CeleryBroker

    return CeleryBroker(address)


def can_start_worker(host: Host) -> bool:
    """Return True if the runs are in a file on this machine and the settings allow it."""
    return host.settings.worker.autostart and host.settings.store.backend == "sqlite" and os.name == "posix"


def start_worker(host: Host, *, config: Path | None = None) -> bool:
    """Start a worker in the background unless one was started before. Return False if nothing was started."""
    if not can_start_worker(host):
        return False
    # Only a check: the new worker acquires the lock itself, and of several that start at once the others exit.
    with hold_worker_lock(host) as is_free:
        if not is_free:
            return False
    # -P and no import path in the workspace, so that Python runs no `sitecustomize.py` that a program left there.
    # PATH stays: sandboxed programs are found by it, and Metier finds its own programs without it.
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
    """Open the log without following a link: the folder may have come with a clone."""
    # O_NONBLOCK, so that opening a pipe at this path doesn't block.
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    stream = os.fdopen(os.open(log, flags, 0o600), "ab")
    if os.fstat(stream.fileno()).st_size >= _MAX_LOG_BYTES:
        stream.truncate(0)
    return stream


@contextmanager
def hold_worker_lock(host: Host) -> Generator[bool]:
    """Hold the lock of self-started workers during the block; yield False if another worker holds it."""
    host.runs.mkdir(parents=True, exist_ok=True)
    # A soft lock is a file that would outlive a killed worker, and then no other one would start.
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
