"""Take the tally of a large catalog in two processes, where that is safe and there are two cores.

A copy of this process (`fork`) reads and counts one half and writes its tally into a pipe. It is made only while this
process has one thread: a lock that another thread held would stay locked in the copy for ever. Whatever goes wrong
there, this process counts that half itself.
"""

import marshal
import os
import sys
import threading
from array import array
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import BinaryIO, cast

from metier.routing.skill import RoutableSkill
from metier.routing.tally import Tally, Told, take_tally

WORTH_TWO = 1_000
"""Skills from which on a second process saves more than it costs."""


def take_tallies[Skill](skills: Sequence[Skill], load: Callable[[Skill], RoutableSkill]) -> list[Tally]:
    """The tallies of the two halves of a large catalog, else one; `load` reads a skill when its turn comes."""
    if len(skills) < WORTH_TWO or not _can_fork():
        return [take_tally(map(load, skills))]
    middle = len(skills) // 2
    other = _Copy.start(lambda: take_tally(map(load, skills[middle:])))
    try:
        first = take_tally(map(load, skills[:middle]))
    finally:
        second = other.finish() if other is not None else None
    return [first, second or take_tally(map(load, skills[middle:]))]


def _can_fork() -> bool:
    # On macOS the system's own libraries may have threads that Python does not see.
    is_safe = sys.platform == "linux" and threading.active_count() == 1
    return is_safe and len(os.sched_getaffinity(0)) > 1


class _Copy:
    """A copy of this process that takes one tally and ends."""

    def __init__(self, process: int, results: BinaryIO) -> None:
        self._process = process
        self._results = results

    @classmethod
    def start(cls, work: Callable[[], Tally]) -> "_Copy | None":
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

    def finish(self) -> Tally | None:
        """The tally, once it is there; nothing where the copy failed."""
        with self._results:
            data = self._results.read()
        _, status = os.waitpid(self._process, 0)
        return _unpack(data) if status == 0 else None


def _write_and_end(work: Callable[[], Tally], sending: int) -> None:
    """In the copy: never returns, so that nothing else of this program runs twice."""
    status = 1
    with suppress(BaseException):
        data = _pack(work())
        with os.fdopen(sending, "wb") as results:
            results.write(data)
        status = 0
    os._exit(status)


def _pack(tally: Tally) -> bytes:
    told = [tuple(each) for each in tally.told]
    columns = [column.tobytes() for column in (tally.starts, tally.skills, tally.times)]
    return marshal.dumps((tally.words, tally.forms, told, *columns))


def _unpack(data: bytes) -> Tally:
    # From `_pack` in a copy of this very process.
    words, forms, told, *columns = cast(
        "tuple[dict[str, int], dict[str, int], list[Told], bytes, bytes, bytes]",
        marshal.loads(data),  # noqa: S302 - as above
    )
    return Tally(words, forms, [Told(*each) for each in told], *(array("I", column) for column in columns))
