"""Do half of a large piece of work in a second process, where that is safe and there are two cores.

It is a copy of this process (`fork`), which does its half, writes what it found into a pipe and ends. It is made only
while this process has one thread: a lock that another thread held would stay locked in the copy for ever. Whatever goes
wrong there, this process does that half itself.
"""

import os
import sys
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import BinaryIO, NamedTuple

WORTH_TWO = 1_000
"""Files from which on a second process saves more than it costs."""


class Parcel[Result](NamedTuple):
    """How a result goes through the pipe. What arrives was packed by a copy of this very process."""

    pack: Callable[[Result], bytes]
    unpack: Callable[[bytes], Result]


def work_in_halves[Item, Result](
    items: Sequence[Item], work: Callable[[Sequence[Item]], Result], parcel: Parcel[Result], *, worth: int = WORTH_TWO
) -> list[Result]:
    """What `work` makes of the two halves of `worth` items or more, else of all of them at once."""
    if len(items) < worth or not _can_fork():
        return [work(items)]
    middle = len(items) // 2
    other = _Copy.start(lambda: parcel.pack(work(items[middle:])))
    try:
        first = work(items[:middle])
    finally:
        packed = other.finish() if other is not None else None
    return [first, work(items[middle:]) if packed is None else parcel.unpack(packed)]


def _can_fork() -> bool:
    # On macOS the system's own libraries may have threads that Python does not see.
    is_safe = sys.platform == "linux" and threading.active_count() == 1
    return is_safe and len(os.sched_getaffinity(0)) > 1


class _Copy:
    """A copy of this process that does one piece of work and ends."""

    def __init__(self, process: int, results: BinaryIO) -> None:
        self._process = process
        self._results = results

    @classmethod
    def start(cls, work: Callable[[], bytes]) -> "_Copy | None":
        """Nothing where the system allows no further process."""
        receiving, sending = os.pipe()
        try:
            process = os.fork()
        except OSError:
            os.close(receiving)
            os.close(sending)
            return None
        if not process:
            os.close(receiving)
            _write_and_end(work, sending)
        os.close(sending)
        return cls(process, os.fdopen(receiving, "rb"))

    def finish(self) -> bytes | None:
        """What it wrote, once it has ended; nothing where it failed."""
        with self._results:
            data = self._results.read()
        _, status = os.waitpid(self._process, 0)
        return data if status == 0 else None


def _write_and_end(work: Callable[[], bytes], sending: int) -> None:
    """In the copy: never returns, so that nothing else of this program runs twice."""
    status = 1
    with suppress(BaseException):
        data = work()
        with os.fdopen(sending, "wb") as results:
            results.write(data)
        status = 0
    os._exit(status)
