"""Programs of the user's desktop: the editor, and the clipboard."""

import base64
import os
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import anyio

from metier.errors import UsageError
from metier.programs.launcher import (
    CLIPBOARD,
    EDITOR,
    Program,
    feed_program,
    find_program,
    run_program,
    use_own_program,
)
from metier.programs.search import drop_writable_paths, get_trusted_program

_COMMON = ("sensible-editor", "nano", "vi", "notepad")


def get_editor(workspace: Path) -> Program:
    """Return the editor. It is never a program in the workspace, where runs can write. Raises `UsageError`."""
    named = os.environ.get("VISUAL", "").strip() or os.environ.get("EDITOR", "").strip()
    program, *arguments = shlex.split(named) if named else ("",)
    for name in (program,) if program else _COMMON:
        if found := get_trusted_program(name, os.environ, writable=[workspace]):
            environment = drop_writable_paths(os.environ, writable=[workspace])
            return use_own_program(EDITOR, found, *arguments, environment=environment)
    message = f"Editor {program!r} not found" if program else "No editor found"
    raise UsageError(message, hint="Set EDITOR to an editor outside the workspace")


def edit_text(text: str, *, suffix: str = ".txt") -> str | None:
    """Return the edited text, or None if the editor failed or changed nothing. Raises `UsageError`.

    The temporary file is in a folder that only this user can read.
    """
    editor = get_editor(Path.cwd())
    with tempfile.TemporaryDirectory(prefix="agent-edit-") as folder:
        # The suffix selects the syntax highlighting of the editor.
        file = Path(folder) / f"text{suffix}"
        file.write_text(text, encoding="utf-8")
        try:
            ended = run_program(editor, str(file), folder=Path(folder), is_interactive=True)
        except OSError as error:
            raise UsageError(
                f"The editor {editor.path!r} cannot be started: {error.strerror}", hint="Set EDITOR to another editor"
            ) from error
        if ended.returncode:
            return None
        edited = file.read_text(encoding="utf-8", errors="replace")
    return edited if edited != text else None


async def edit_in_thread(text: str, *, suffix: str = ".txt") -> str | None:
    """Call `edit_text` in a thread, so that the event loop keeps the run's lease alive."""
    return await anyio.to_thread.run_sync(lambda: edit_text(text, suffix=suffix))


MAX_TERMINAL_BYTES = 74_994
"""Terminals commonly accept 100,000 characters of Base64, the sequence included."""
_TIMEOUT_SECONDS = 3.0
_VARIABLES = ("DISPLAY", "WAYLAND_DISPLAY", "XAUTHORITY", "XDG_RUNTIME_DIR")


def copy_text(text: str, *, workspace: Path) -> Sequence[str]:
    """Copy the text in all available ways, and return the names of those that worked."""
    data = text.encode()
    ways = [name for name, arguments in _list_programs() if _feed(name, arguments, data, workspace=workspace)][:1]
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
