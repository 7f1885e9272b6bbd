"""The person's own editor, for a text that is long to type: `$VISUAL`, else `$EDITOR`, else one that is there."""

import os
import shlex
import tempfile
from pathlib import Path

import anyio

from metier.errors import UsageError
from metier.programs.launcher import EDITOR, Program, run_program, use_own_program
from metier.programs.search import drop_writable_paths, get_trusted_program

_USUAL = ("sensible-editor", "nano", "vi", "notepad")


def get_editor(workspace: Path) -> Program:
    """The editor; its program is never one of the workspace, which runs can write. Raises `UsageError`."""
    named = os.environ.get("VISUAL", "").strip() or os.environ.get("EDITOR", "").strip()
    program, *arguments = shlex.split(named) if named else ("",)
    for name in (program,) if program else _USUAL:
        if found := get_trusted_program(name, os.environ, writable=[workspace]):
            environment = drop_writable_paths(os.environ, writable=[workspace])
            return use_own_program(EDITOR, found, *arguments, environment=environment)
    said = f"Editor {program!r} not found" if program else "No editor found"
    raise UsageError(said, hint="Set EDITOR to an editor outside the workspace")


def edit_text(text: str, *, suffix: str = ".txt") -> str | None:
    """The text as the editor left it; None where it changed nothing or failed. Raises `UsageError`.

    The file is in a folder that only this person can read, and is gone afterwards.
    """
    editor = get_editor(Path.cwd())
    with tempfile.TemporaryDirectory(prefix="agent-edit-") as folder:
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
    """The same while the event loop goes on: the lease of a run is kept alive meanwhile."""
    return await anyio.to_thread.run_sync(lambda: edit_text(text, suffix=suffix))
