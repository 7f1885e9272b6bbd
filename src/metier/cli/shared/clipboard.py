"""Copy text to the user's clipboard: by a program of the desktop, and by the terminal, which also works over SSH."""

import base64
import os
import subprocess
import sys
from collections.abc import Sequence
from itertools import islice
from pathlib import Path

from metier.programs.launcher import CLIPBOARD, feed_program, find_program

MAX_TERMINAL_BYTES = 74_994
"""Terminals commonly accept 100,000 characters of Base64, the sequence included."""
_TIMEOUT_SECONDS = 3.0
_VARIABLES = ("DISPLAY", "WAYLAND_DISPLAY", "XAUTHORITY", "XDG_RUNTIME_DIR")


def copy_text(text: str, *, workspace: Path) -> Sequence[str]:
    """Copy the text in all available ways, and return the names of those that worked."""
    data = text.encode()
    worked = (name for name, arguments in _list_programs() if _feed(name, arguments, data, workspace=workspace))
    # The generator is lazy, so no program is started after the first one that works.
    ways = list(islice(worked, 1))
    # The original streams, because those of a chat hold back text until its line ends.
    stream = next((each for each in (sys.__stdout__, sys.__stderr__) if each is not None and each.isatty()), None)
    if stream is not None and len(data) <= MAX_TERMINAL_BYTES:
        # OSC 52. A terminal doesn't report whether it supports this, so the desktop program is used in addition.
        stream.write(f"\x1b]52;c;{base64.b64encode(data).decode('ascii')}\x07")
        stream.flush()
        ways.append("the terminal")
    return ways


def _list_programs() -> Sequence[tuple[str, tuple[str, ...]]]:
    """List the programs of the current display server. Without a display they would fail or hang."""
    if sys.platform == "darwin":
        return (("pbcopy", ()),)
    if sys.platform == "win32":
        return (("clip", ()),)
    wayland = (("wl-copy", ()),) if os.environ.get("WAYLAND_DISPLAY") else ()
    x11 = (("xclip", ("-selection", "clipboard")), ("xsel", ("-ib",))) if os.environ.get("DISPLAY") else ()
    return (*wayland, *x11)


def _feed(name: str, arguments: tuple[str, ...], data: bytes, *, workspace: Path) -> bool:
    program = find_program(CLIPBOARD, name, os.environ, writable=(workspace,), passed=_VARIABLES)
    if program is None:
        return False
    try:
        return feed_program(program, *arguments, given=data, timeout=_TIMEOUT_SECONDS) == 0
    except (OSError, subprocess.TimeoutExpired):
        return False
