"""What the wrapper of a child process left on disk: that it started, and how it ended. Written by `supervisor.py`."""

from dataclasses import dataclass
from pathlib import Path

STARTED, ENDED = ".started", ".ended"


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
