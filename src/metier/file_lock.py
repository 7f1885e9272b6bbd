"""A lock between processes: a file that the kernel locks for one of them, and frees when that process ends.

The file stays where it is: who unlinks a lock file splits those that wait for it.
"""

import os
import sys
import time
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Self

if sys.platform == "win32":
    import msvcrt

    def _try(descriptor: int) -> None:
        msvcrt.locking(descriptor, msvcrt.LK_NBLCK, 1)

else:
    import fcntl

    def _try(descriptor: int) -> None:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)


_POLL_SECONDS = 0.05


class LockHeld(Exception):
    """Another one has the lock, and kept it for as long as the caller would wait."""


class FileLock:
    """One lock of one file. Two of them for the same file exclude each other, in one process too."""

    def __init__(self, path: Path, *, wait_seconds: float = 0.0, mode: int = 0o644) -> None:
        self._path, self._wait_seconds, self._mode = path, wait_seconds, mode
        self._descriptor: int | None = None

    def acquire(self) -> None:
        """Raises `LockHeld`, and `OSError` where the file cannot be opened or locked at all."""
        assert self._descriptor is None, "held already"
        end = time.monotonic() + self._wait_seconds
        while (descriptor := self._open()) is None:
            if time.monotonic() >= end:
                raise LockHeld(str(self._path))
            time.sleep(_POLL_SECONDS)
        self._descriptor = descriptor

    def release(self) -> None:
        """The kernel frees the lock with the descriptor. Nothing where it is not held."""
        if self._descriptor is not None:
            descriptor, self._descriptor = self._descriptor, None
            os.close(descriptor)

    def __enter__(self) -> Self:
        self.acquire()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()

    def _open(self) -> int | None:
        """A descriptor that has the lock, or nothing while another one has it."""
        descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0), self._mode)
        has_lock = False
        try:
            # Some file systems answer with EACCES where others say that they would have to wait.
            with suppress(BlockingIOError, PermissionError):
                _try(descriptor)
                # Unlinked since it was opened: the next one who comes makes another file, and would not see this lock.
                has_lock = os.fstat(descriptor).st_nlink > 0
        finally:
            if not has_lock:
                os.close(descriptor)
        return descriptor if has_lock else None
