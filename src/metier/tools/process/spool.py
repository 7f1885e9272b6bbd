"""Notes on disk about the start and the end of a step's process, written by `supervisor.py`.

A lock next to the notes is held from before the supervisor starts until it has ended, even if the agent dies. After
waiting for the lock, a reader can rely on the notes not changing anymore.
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

    def _lock(descriptor: int) -> bool:  # noqa: ARG001  without supervisors, there is nothing to wait for
        return True

else:
    import fcntl

    def _lock(descriptor: int) -> bool:
        """Take the lock if it is free. Closing the last copy of the descriptor, even an inherited one, releases it."""
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True


ENDED, LOCK = ".ended", ".lock"
LOST = ".lost"
"""Suffix for a step that was started according to lost journal entries. The user is asked before it runs again."""
IDENTITY = "identity"
"""The file with the unique ID of a spool folder."""
WAIT_SECONDS = 20.0
"""A supervisor needs at most half of this to end everything after its agent died."""
_RETRY_SECONDS = 0.01


class SpoolNote(Struct, frozen=True):
    started: bool = False
    ended: bool = False
    exit_code: int | None = None
    """None when a signal ended it."""
    stopped: bool = False
    """It was killed because the agent stopped it or died."""


def read_spool(path: Path) -> SpoolNote:
    """Read the notes of a supervisor. `path` is its SPOOL argument, without the suffixes."""
    if not path.with_name(path.name + STARTED).exists():
        return SpoolNote()
    try:
        words = path.with_name(path.name + ENDED).read_text(encoding="ascii").split()
        exit_code, number, stopped = (int(word) for word in words)
    except (OSError, ValueError):
        # Without a whole note about the end, the outcome is unknown: the step may have had its effect.
        return SpoolNote(started=True)
    return SpoolNote(started=True, ended=True, exit_code=None if number else exit_code, stopped=bool(stopped))


def is_lost(path: Path) -> bool:
    """Return True if this attempt was started according to lost journal entries."""
    # Called before every step: building a `Path` would cost more than the check.
    return os.path.exists(f"{path}{LOST}")  # noqa: PTH110


def get_identity(folder: Path) -> str:
    """Return the ID of a spool folder; empty if it has none."""
    try:
        return (folder / IDENTITY).read_text(encoding="ascii").strip()
    except (OSError, ValueError):
        return ""


def take_identity(folder: Path) -> str:
    """Return the ID of a spool folder, and create it if it is missing.

    It is not synced to disk: if a power cut loses it, the folder counts as another one, which only costs a question.
    """
    if found := get_identity(folder):
        return found
    made = secrets.token_hex(16)
    # A fixed name, so that the next attempt replaces the file of a killed one.
    part = folder / f".{IDENTITY}.part"
    part.write_text(made, encoding="ascii")
    part.replace(folder / IDENTITY)
    return made


def note_start(path: Path) -> None:
    """Record on disk that an effect without a supervisor starts now."""
    descriptor = os.open(path.with_name(path.name + STARTED), os.O_WRONLY | os.O_CREAT, 0o600)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
    # The new name is on disk only after syncing the folder. Otherwise a power cut could hide that the effect started.
    sync_folder(path.parent)


def hold(path: Path) -> int:
    """Take the lock and return its descriptor, which the supervisor inherits. Raises `OSError` if it is taken."""
    # The kernel releases the lock when the last holder dies, however it dies; a file with a process ID would stay.
    descriptor = os.open(path.with_name(path.name + LOCK), os.O_RDWR | os.O_CREAT, 0o600)
    if not _lock(descriptor):
        os.close(descriptor)
        raise BlockingIOError(errno.EBUSY, os.strerror(errno.EBUSY), str(path))
    return descriptor


async def wait_until_released(path: Path) -> bool:
    """Wait until no supervisor holds the lock. Returns False after a timeout."""
    with anyio.move_on_after(WAIT_SECONDS):
        while True:
            if not is_held(path):
                return True
            await anyio.sleep(_RETRY_SECONDS)
    return False


def is_held(path: Path) -> bool:
    """Return True if a supervisor holds the lock now."""
    try:
        descriptor = os.open(path.with_name(path.name + LOCK), os.O_RDWR)
    except FileNotFoundError:
        return False
    try:
        return not _lock(descriptor)
    finally:
        os.close(descriptor)
