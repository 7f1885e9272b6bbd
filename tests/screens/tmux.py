"""A real terminal of a given size: a private tmux server, its screen, and the user's keys."""

import os
import re
import shlex
import subprocess
import tempfile
import time
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from pathlib import Path
from threading import Event

SECONDS = 100.0


class Terminal:
    def __init__(self, socket: Path) -> None:
        self._socket = socket

    def capture(self, *, styled: bool = False) -> str:
        shown = self._tmux("capture-pane", "-p", *(["-e"] if styled else []), "-t", "screen")
        return "\n".join(line.rstrip() for line in shown.splitlines()).rstrip("\n")

    def wait_for(self, text: str) -> str:
        """Wait until the screen shows a matching text."""
        deadline = time.monotonic() + SECONDS
        while not re.search(text, shown := self.capture()):
            if time.monotonic() > deadline:
                raise AssertionError(f"{text!r} did not come; the screen shows:\n{shown}")
            Event().wait(0.05)  # each look is a process
        return shown

    def type(self, *keys: str) -> None:
        self._tmux("send-keys", "-t", "screen", *keys)

    def resize(self, columns: int, rows: int) -> None:
        self._tmux("resize-window", "-t", "screen", "-x", str(columns), "-y", str(rows))

    def _tmux(self, *args: str) -> str:
        command = ["tmux", "-S", str(self._socket), "-f", "/dev/null", *args]
        return subprocess.run(command, capture_output=True, text=True, check=True, timeout=SECONDS).stdout


def _leave_out_size(environment: Mapping[str, str]) -> dict[str, str]:
    """Remove COLUMNS, which a parallel test run sets and which overrides the terminal's size."""
    given = {name: value for name, value in environment.items() if name not in ("COLUMNS", "LINES")}
    return {**given, "TERM": "xterm-256color", "LANG": "C.UTF-8"}


@contextmanager
def open_terminal(
    command: list[str], *, folder: Path, environment: Mapping[str, str], size: tuple[int, int]
) -> Generator[Terminal]:
    """Run a command in a new terminal; the screen stays after the command ended."""
    with tempfile.TemporaryDirectory() as scratch:
        socket = Path(scratch) / "s"
        terminal = Terminal(socket)
        # Ctrl-C reaches the shell too, which must outlive it; a command that it starts does not inherit a trap.
        line = f"trap : INT; {shlex.join(command)}; exec tail -f /dev/null"
        server = ["tmux", "-S", str(socket), "-f", "/dev/null", "new-session", "-d", "-s", "screen"]
        subprocess.run(
            [*server, "-x", str(size[0]), "-y", str(size[1]), "sh", "-c", line],
            cwd=folder, env=_leave_out_size({**os.environ, **environment}), check=True,
        )  # fmt: skip
        try:
            yield terminal
        finally:
            subprocess.run(["tmux", "-S", str(socket), "kill-server"], capture_output=True, check=False)
