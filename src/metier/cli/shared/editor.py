"""Edit a text in the user's editor: `$VISUAL`, `$EDITOR`, or a common one that is installed."""

import os
import shlex
import tempfile
from pathlib import Path

import anyio

from metier.errors import UsageError
from metier.programs.launcher import EDITOR, Program, run_program, use_own_program
from metier.programs.search import drop_writable_paths, get_trusted_program

_COMMON = ("sensible-editor", "nano", "vi", "notepad")


def get_editor(workspace: Path) -> Program:
    """Return the editor. It is never a program in the workspace, where runs can write. Raises `UsageError`."""
    named = os.environ.get("VISUAL", "").strip() or os.environ.get("EDITOR", "").strip()
    # The variable often has options, such as `code --wait`.
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
