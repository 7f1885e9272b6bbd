"""What the wrapper of a child process left on disk: that it started, and how it ended. Written by `supervisor.py`.

A lock beside the notes is held from before the wrapper exists until it has ended, whatever becomes of the agent: who
has waited for it reads notes that will not change any more.
"""

import os
import sys
from dataclasses import dataclass
from pathlib import Path

import anyio

if sys.platform != "win32":
    import fcntl

STARTED, ENDED, LOCK = ".started", ".ended", ".lock"
WAIT_SECONDS = 20.0
"""A wrapper whose agent died ends everything within half of this."""
_RETRY_SECONDS = 0.01


@dataclass(frozen=True, slots=True)
class SpoolNote:
    started: bool = False
    ended: bool = False
    exit_code: int | None = None
    """None when a signal ended it."""
    stopped: bool = False
    """It was killed because the agent wanted so, or died."""


def read_spool(path: Path) -> SpoolNote:
    """`path` is the name that the wrapper was given; its two files stand beside it."""
    if not path.with_name(path.name + STARTED).exists():
        return SpoolNote()
    try:
        words = path.with_name(path.name + ENDED).read_text(encoding="ascii").split()
        exit_code, number, stopped = (int(word) for word in words)
    except (OSError, ValueError):
        return SpoolNote(started=True)
    return SpoolNote(started=True, ended=True, exit_code=None if number else exit_code, stopped=bool(stopped))


def hold(path: Path) -> int:
    """Take the lock and return its descriptor, for the wrapper to inherit; -1 where there are no such locks."""
    if sys.platform == "win32":
        return -1
    descriptor = os.open(path.with_name(path.name + LOCK), os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(descriptor)
        raise
    return descriptor


async def wait_until_released(path: Path) -> bool:
    """Until no wrapper works under this name; False when one will not end."""
    with anyio.move_on_after(WAIT_SECONDS):
        while is_held(path):
            await anyio.sleep(_RETRY_SECONDS)
        return True
    return False


def is_held(path: Path) -> bool:
    """Does a wrapper work under this name now?"""
    if sys.platform == "win32":
        return False
    try:
        descriptor = os.open(path.with_name(path.name + LOCK), os.O_RDWR)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)
    return False
