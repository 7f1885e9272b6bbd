"""`agent chat` at a pseudo-terminal: its screen as text, and the user's keys."""

import codecs
import os
import pty
import re
import select
import subprocess
import sys
import time
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from agent_command import AGENT

SECONDS = 120.0
CTRL_C, CTRL_D, ENTER, ESCAPE, TAB, UP = "\x03", "\x04", "\r", "\x1b", "\t", "\x1b[A"
CTRL_BACKSLASH = "\x1c"
OWN_TERMINAL = """import fcntl, os, signal, sys, termios
signal.signal(signal.SIGINT, signal.SIG_DFL)
signal.signal(signal.SIGQUIT, signal.SIG_DFL)
fcntl.ioctl(0, termios.TIOCSCTTY, 0)
os.execv(sys.argv[1], sys.argv[1:])
"""
"""Makes the terminal the one that Ctrl-C comes from, whatever the tests were started with."""
_CONTROL = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]|\x1b[=>]|\x1b\][^\x07]*\x07")
_UNFINISHED = re.compile(r"\x1b(?:\[[0-9;?]*|\][^\x07]*)?$")
"""A sequence of which the rest has not been read: reads end anywhere."""


class Terminal:
    def __init__(self, descriptor: int, process: subprocess.Popen[Any]) -> None:
        self.process = process
        self._descriptor = descriptor
        self._seen = ""
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._unfinished = ""
        self.raw = b""
        """All bytes that were sent to the terminal."""

    @property
    def is_open(self) -> bool:
        return self._descriptor >= 0

    def type(self, keys: str) -> None:
        os.write(self._descriptor, keys.encode())

    def wait_for(self, text: str) -> str:
        """Wait until the screen shows the text; return the output since the last wait."""
        deadline = time.monotonic() + SECONDS
        while text not in self._seen:
            left = deadline - time.monotonic()
            if left <= 0 or not self._read(left):
                raise AssertionError(f"{text!r} did not come; the screen shows:\n{self._seen}")
        end = self._seen.index(text) + len(text)
        shown, self._seen = self._seen[:end], self._seen[end:]
        return shown

    def forget(self) -> None:
        """Drop the output so far, for a stopped process that prints nothing more."""
        while self._read(0):
            pass
        self._seen = ""

    def hang_up(self) -> None:
        """Close the terminal under the process, like closing its window."""
        os.close(self._descriptor)
        self._descriptor = -1

    def wait_for_end(self) -> int:
        deadline = time.monotonic() + SECONDS
        while time.monotonic() < deadline and self._read(0.2, is_patient=True):
            pass
        return self.process.wait(SECONDS)

    def _read(self, seconds: float, *, is_patient: bool = False) -> bool:
        ready, _, _ = select.select([self._descriptor], [], [], seconds)
        if not ready:
            return is_patient and self.process.poll() is None
        try:
            data = os.read(self._descriptor, 65536)
        except OSError:
            return False
        self.raw += data
        text = self._unfinished + self._decoder.decode(data)
        rest = _UNFINISHED.search(text)
        self._unfinished = rest[0] if rest else ""
        self._seen += _CONTROL.sub("", text.removesuffix(self._unfinished))
        return bool(data)


@contextmanager
def chat_terminal(folder: Path, *args: str, **environment: str) -> Generator[Terminal]:
    with open_terminal(AGENT, "chat", *args, folder=folder, environment=environment) as terminal:
        yield terminal


@contextmanager
def agent_terminal(folder: Path, *args: str, **environment: str) -> Generator[Terminal]:
    with open_terminal(AGENT, *args, folder=folder, environment=environment) as terminal:
        yield terminal


@contextmanager
def open_terminal(program: Path, *args: str, folder: Path, environment: Mapping[str, str]) -> Generator[Terminal]:
    """Start a real program at its own terminal."""
    controller, terminal = pty.openpty()
    variables = {**os.environ, "TERM": "xterm", "PROMPT_TOOLKIT_NO_CPR": "1", "NO_COLOR": "1", **environment}
    process = subprocess.Popen(
        [sys.executable, "-I", "-S", "-c", OWN_TERMINAL, program, *args], cwd=folder, env=variables,
        stdin=terminal, stdout=terminal, stderr=terminal, start_new_session=True,
    )  # fmt: skip
    os.close(terminal)
    shown = Terminal(controller, process)
    try:
        yield shown
    finally:
        if process.poll() is None:
            process.kill()
        process.wait(SECONDS)
        if shown.is_open:
            os.close(controller)
