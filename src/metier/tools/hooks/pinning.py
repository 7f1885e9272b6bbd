"""The files of a workspace that hooks name, and whether they are still what they were when the run began."""

import hashlib
import os
import shlex
from collections.abc import Iterable
from pathlib import Path

from metier.definitions.files.contained_file import read_contained
from metier.lazy_regex import lazy_regex
from metier.tools.hooks.definition import HookCommand

FOLDER_VARIABLES = ("CLAUDE_PROJECT_DIR", "AGENT_PROJECT_DIR")
MAX_CODE_BYTES = 8 * 1_048_576
_FOLDER = lazy_regex(r"\$\{?(?:" + "|".join(FOLDER_VARIABLES) + r")\}?")


def name_folder(text: str, workspace: Path) -> str:
    """The text with the folder in place of the variables that stand for it."""
    return _FOLDER.sub(lambda _: str(workspace), text)


def pin_files(hooks: Iterable[HookCommand], workspace: Path) -> tuple[HookCommand, ...]:
    """The hooks with the hashes of the files in the workspace that their commands name."""
    return tuple(
        hook.model_copy(update={"files": {name: _digest(workspace, name) for name in _find_files(hook, workspace)}})
        for hook in hooks
    )


def find_changed_file(hook: HookCommand, workspace: Path) -> str:
    """The first file that is no longer what it was when the run began; empty where none is."""
    return next((name for name, digest in hook.files.items() if _digest(workspace, name) != digest), "")


def _find_files(hook: HookCommand, workspace: Path) -> list[str]:
    line = name_folder(hook.command, workspace)
    try:
        words = [hook.command] if hook.args is not None else shlex.split(line, comments=False)
    except ValueError:
        words = line.split()
    words += [name_folder(word, workspace) for word in hook.args or ()]
    found: list[str] = []
    for word in words:
        path = Path(os.path.normpath(workspace / word.strip(";&|()")))
        if path.is_relative_to(workspace) and path.is_file():
            found.append(str(path.relative_to(workspace)))
    return list(dict.fromkeys(found))


def _digest(workspace: Path, name: str) -> str:
    try:
        data = read_contained(workspace / name, within=workspace, limit=MAX_CODE_BYTES)
    except OSError:
        return "unreadable"
    return hashlib.sha256(data).hexdigest()
