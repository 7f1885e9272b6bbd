"""The command `agent` for tests: called in this process, or as a real process.

A call costs far less than a new process, which imports Metier first. Tests of starting, signals, terminals and crashes
start the real program.
"""

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Generator, Mapping
from pathlib import Path
from typing import BinaryIO

from metier.cli.main import run
from metier.programs import search

AGENT = Path(sys.executable).parent / "agent"
"""The real program."""

MAX_INPUT_BYTES = 65536
"""The size of a pipe: the whole input is written before the command reads it."""


def run_agent(
    *args: str, cwd: Path, env: Mapping[str, str] | None = None, stdin: str | None = None
) -> subprocess.CompletedProcess[str]:
    """Run one command in this process. Without `stdin`, its input is empty and not a pipe."""
    variables = dict(os.environ if env is None else env)
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        with _restored_process(), _standard_streams(_open_input(stdin), out, err):
            os.environ.clear()
            os.environ.update(variables)
            os.chdir(cwd)
            code = run(args)
        out.seek(0)
        err.seek(0)
        return subprocess.CompletedProcess(args, code, out.read().decode(), err.read().decode())


def _open_input(text: str | None) -> int:
    if text is None:
        return os.open(os.devnull, os.O_RDONLY)
    data = text.encode()
    assert len(data) <= MAX_INPUT_BYTES
    reading, writing = os.pipe()
    os.write(writing, data)
    os.close(writing)
    return reading


@contextlib.contextmanager
def _restored_process() -> Generator[None]:
    """Restore the state of the process that a command may change."""
    folder, environ = Path.cwd(), dict(os.environ)
    handlers = {number: signal.getsignal(number) for number in signal.valid_signals()}
    search.excluded_folders.clear()
    try:
        yield
    finally:
        search.excluded_folders.clear()
        for number, handler in handlers.items():
            if handler is not None and signal.getsignal(number) != handler:
                signal.signal(number, handler)
        os.environ.clear()
        os.environ.update(environ)
        os.chdir(folder)
        tempfile.tempdir = None  # of the environment that it had


@contextlib.contextmanager
def _standard_streams(reading: int, out: BinaryIO, err: BinaryIO) -> Generator[None]:
    """Replace the three descriptors and the three streams: programs that the command starts inherit them."""
    before = sys.stdin, sys.stdout, sys.stderr
    sys.stdout.flush()
    sys.stderr.flush()
    saved = [os.dup(number) for number in range(3)]
    for number, descriptor in enumerate((reading, out.fileno(), err.fileno())):
        os.dup2(descriptor, number)
    os.close(reading)
    try:
        with (
            open(0, encoding="utf-8", closefd=False) as stdin,
            open(1, "w", encoding="utf-8", errors="backslashreplace", closefd=False) as stdout,
            open(2, "w", encoding="utf-8", errors="backslashreplace", buffering=1, closefd=False) as stderr,
        ):
            sys.stdin, sys.stdout, sys.stderr = stdin, stdout, stderr
            yield
    finally:
        sys.stdin, sys.stdout, sys.stderr = before
        for number, descriptor in enumerate(saved):
            os.dup2(descriptor, number)
            os.close(descriptor)
