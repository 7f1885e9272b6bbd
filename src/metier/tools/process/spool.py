"""Notes of a child process's wrapper on disk: its start and its end. Written by `supervisor.py`.

A lock beside the notes is held from before the wrapper exists until it has ended, whatever becomes of the agent: who
has waited for it reads notes that will not change any more.
"""

import errno
import os
import secrets
import sys
from pathlib import Path

import anyio
from msgspec import Struct

from metier.definitions.files.whole_file import sync_folder
from metier.tools.base import STARTED

if sys.platform == "win32":

    def _lock(descriptor: int) -> bool:  # noqa: ARG001  there are no wrappers here, and nothing to wait for
        return True

else:
    import fcntl

    def _lock(descriptor: int) -> bool:
        """Take the lock if it is free. It goes with the last copy of the descriptor, inherited ones included."""
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True


ENDED, LOCK = ".ended", ".lock"
LOST = ".lost"
"""Marks a step that was started in entries which the journal has lost: it is asked about when it comes up again."""
IDENTITY = "identity"
"""The file in a spool folder that tells it from every other one."""
WAIT_SECONDS = 20.0
"""A wrapper whose agent died ends everything within half of this."""
_RETRY_SECONDS = 0.01


class SpoolNote(Struct, frozen=True):
    started: bool = False
    ended: bool = False
    exit_code: int | None = None
    """None when a signal ended it."""
    stopped: bool = False
    """It was killed because the agent wanted so, or died."""


def read_spool(path: Path) -> SpoolNote:
    """`path` is the name that the wrapper was given; its two files are next to it."""
    if not path.with_name(path.name + STARTED).exists():
        return SpoolNote()
    try:
        words = path.with_name(path.name + ENDED).read_text(encoding="ascii").split()
        exit_code, number, stopped = (int(word) for word in words)
    except (OSError, ValueError):
        return SpoolNote(started=True)
    return SpoolNote(started=True, ended=True, exit_code=None if number else exit_code, stopped=bool(stopped))


def is_lost(path: Path) -> bool:
    """Was this attempt started in entries that the journal has lost?"""
    # Before every step, so without building a path: that costs more than looking.
    return os.path.exists(f"{path}{LOST}")  # noqa: PTH110


def get_identity(folder: Path) -> str:
    """The identity of a spool folder; empty where it has none."""
    try:
        return (folder / IDENTITY).read_text(encoding="ascii").strip()
    except (OSError, ValueError):
        return ""


def take_identity(folder: Path) -> str:
    """The identity of a spool folder, made when it is missing.

    Not synced: a power cut that takes it away leaves a folder that counts as another one, and that only costs a
    question.
    """
    if found := get_identity(folder):
        return found
    made = secrets.token_hex(16)
    # One name for all: the next attempt replaces what a kill left.
    part = folder / f".{IDENTITY}.part"
    part.write_text(made, encoding="ascii")
    part.replace(folder / IDENTITY)
    return made


def note_start(path: Path) -> None:
    """Write down, synced, that an effect without a wrapper begins now."""
    descriptor = os.open(path.with_name(path.name + STARTED), os.O_WRONLY | os.O_CREAT, 0o600)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
    # The name is on disk only when the folder is: without it a power cut leaves an effect that nothing tells of.
    sync_folder(path.parent)


def hold(path: Path) -> int:
    """Take the lock and return its descriptor, for the wrapper to inherit. Raises `OSError` when a wrapper has it."""
    # The kernel releases the lock when the last holder dies, however it dies; a file with a process ID would stay.
    descriptor = os.open(path.with_name(path.name + LOCK), os.O_RDWR | os.O_CREAT, 0o600)
    if not _lock(descriptor):
        os.close(descriptor)
        raise BlockingIOError(errno.EBUSY, os.strerror(errno.EBUSY), str(path))
    return descriptor


async def wait_until_released(path: Path) -> bool:
    """Until no wrapper works under this name; False when one will not end."""
    with anyio.move_on_after(WAIT_SECONDS):
        while True:
            if not is_held(path):
                return True
            await anyio.sleep(_RETRY_SECONDS)
    return False


def is_held(path: Path) -> bool:
    """Does a wrapper work under this name now?"""
    try:
        descriptor = os.open(path.with_name(path.name + LOCK), os.O_RDWR)
    except FileNotFoundError:
        return False
    try:
        return not _lock(descriptor)
    finally:
        os.close(descriptor)
