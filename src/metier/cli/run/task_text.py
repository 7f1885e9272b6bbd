"""The task of a run from an argument, a file, or standard input. Bounded, and never empty."""

import os
import stat
import sys
from pathlib import Path

from metier.errors import UsageError

MAX_TASK_BYTES = 256_000
MAX_CONTEXT_BYTES = 1_000_000
"""More than this from a pipe is a file that should be read, not a context."""


def read_task(argument: str | None, *, prompt: str | None, file: Path | None) -> str:
    """Raises `UsageError` where there is none, more than one, or nothing in it."""
    given = [source for source in (argument, prompt, file) if source is not None]
    if len(given) > 1:
        raise UsageError("More than one task given", hint="Use only one of the argument, -p and --task-file")
    if not given:
        raise UsageError("No task given", hint='For example, `agent run "list the open tasks"`')
    if file is not None:
        text = _read_file(file)
    elif given[0] == "-":
        text = _read_stdin(MAX_TASK_BYTES)
    else:
        # A locale without UTF-8, or a caller without care, leaves bytes in it that are no letters.
        text = _decode(os.fsencode(str(given[0])), MAX_TASK_BYTES, "The task")
    if not text.strip():
        raise UsageError("The task is empty", hint='For example, `agent run "list the open tasks"`')
    return text.strip()


def read_context(*, is_task: bool) -> str:
    """The piped input beside the task; nothing where stdin is a terminal, closed, or the task itself."""
    if is_task or sys.stdin is None or sys.stdin.closed or not _is_piped():
        return ""
    return _read_stdin(MAX_CONTEXT_BYTES).strip()


def _is_piped() -> bool:
    """Only what has an end: a pipe or a file. A socket or a device may stay silent for ever."""
    try:
        mode = os.fstat(sys.stdin.fileno()).st_mode
    except (OSError, ValueError):
        return False
    return stat.S_ISFIFO(mode) or stat.S_ISREG(mode)


def _read_file(path: Path) -> str:
    try:
        with path.open("rb") as file:
            data = file.read(MAX_TASK_BYTES + 1)
    except OSError as error:
        raise UsageError(f"The task file {str(path)!r} cannot be read: {error.strerror}") from error
    return _decode(data, MAX_TASK_BYTES, f"The task file {str(path)!r}")


def _read_stdin(most: int) -> str:
    data = sys.stdin.buffer.read(most + 1)
    return _decode(data, most, "The piped input")


def _decode(data: bytes, most: int, what: str) -> str:
    if len(data) > most:
        raise UsageError(
            f"{what} is longer than {most} bytes", hint="Save it in a workspace file and mention the file in the task"
        )
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise UsageError(f"{what} is not UTF-8 text, at byte {error.start}") from error
