"""Finds the settings file and reads its text. Only the first file is used; files are never merged."""

import os
import re
import stat
from collections.abc import Mapping
from pathlib import Path

from msgspec import Struct

from metier.definitions.files.contained_path import read_contained
from metier.definitions.files.quarantine import is_unsettled
from metier.definitions.files.user_folders import get_config_folder, get_data_folder
from metier.definitions.problems import Problem
from metier.definitions.skills.sources import WORKSPACE_FOLDERS
from metier.definitions.text.yaml_text import MAX_BYTES

FILE_NAME = "agent.yaml"
RUNS_KEY = "logging.jsonl_dir"

# Compiled on first use, because a class of that many characters takes 5 ms.
_NOT_TEXT = r"[^\t\n\r\x20-\x7e\x85\xa0-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]"


_MARKS = (FILE_NAME, *WORKSPACE_FOLDERS)
"""Names that mark a folder as a workspace."""


def get_workspace(cwd: Path, *, home: Path) -> Path:
    """Return `cwd` or its nearest parent that is a workspace, or `cwd` if there is none.

    The search stops at the root of a repository, at the home folder, whose `.agent` contains the user's own skills, and
    at folders of other users, who could plant a workspace above yours.
    """
    if any(_exists(cwd / name) for name in _MARKS):
        return cwd
    for folder in (cwd, *cwd.parents):
        # A root folder is its own parent.
        is_end = folder in (home, folder.parent) or not _is_users(folder)
        if is_end:
            break
        if any(_exists(folder / name) and _is_users(folder / name) for name in _MARKS):
            return folder
        if os.path.lexists(folder / ".git"):
            break
    return cwd


def _is_users(path: Path) -> bool:
    """Return True if the user of this process owns the path. On Windows, which has no user IDs, this is always true."""
    get_user = getattr(os, "geteuid", None)
    try:
        return get_user is None or os.lstat(path).st_uid == get_user()
    except OSError:
        return False


class SettingsFile(Struct, frozen=True, kw_only=True):
    """A settings file to read."""

    path: Path
    name: str
    """Name in messages: the path as given, or a short one."""
    was_named: bool
    """True if the user named this file. It must exist, and may be a pipe."""
    is_carried: bool = False
    """True if it is in the workspace, so that its author is the folder's author."""


class FileText(Struct, frozen=True):
    text: str
    problems: tuple[Problem, ...] = ()


def find_file(*, config: Path | None, environ: Mapping[str, str], cwd: Path, home: Path) -> SettingsFile | None:
    """Find the settings file: `config` if given, else `./agent.yaml`, else the user's own file."""
    if config is not None:
        return SettingsFile(path=cwd / config, name=str(config), was_named=True)
    path = cwd / FILE_NAME
    if _exists(path):
        return SettingsFile(path=path, name=FILE_NAME, was_named=False, is_carried=True)
    return find_own_file(environ=environ, cwd=cwd, home=home)


def find_own_file(*, environ: Mapping[str, str], cwd: Path, home: Path) -> SettingsFile | None:
    """Find the user's own file in the configuration folder."""
    path = get_config_folder(environ, home) / FILE_NAME
    if not _exists(path):
        return None
    return SettingsFile(path=path, name=_short_name(path, cwd=cwd, home=home), was_named=False)


def find_default_runs(*, cwd: Path, home: Path, environ: Mapping[str, str]) -> Path | None:
    """Return the default runs folder outside of projects, or None in a project.

    The home folder and a root folder are not projects. Runs that an earlier version stored there stay in use.
    """
    if cwd not in (home, Path(cwd.anchor)) or (cwd / "runs" / "state.db").exists():
        return None
    return get_data_folder(environ, home) / "runs"


def read_text(file: SettingsFile) -> FileText:
    """Read the text of the file. Never raises; problems are in `problems`."""
    try:
        mode = file.path.stat().st_mode
        if stat.S_ISDIR(mode):
            return _refuse(
                file, "not_a_file", "This is a directory, not a file", hint=f"Give the path of the {FILE_NAME} in it"
            )
        # Opening a pipe in a cloned folder would wait forever. A named file may be one, as in `--config <(…)`.
        if not (stat.S_ISREG(mode) or file.was_named):
            return _refuse(file, "not_a_file", "This is not a regular file")
        if file.is_carried:
            # A link in a clone could lead to a private file, and messages about invalid settings quote the text.
            raw = read_contained(file.path, within=file.path.parent, limit=MAX_BYTES)
        else:
            # Chosen by the user, or in their configuration folder, which is often a link to their dotfiles.
            with file.path.open("rb") as stream:
                raw = stream.read(MAX_BYTES + 1)
    except (OSError, ValueError) as error:
        reason = (error.strerror if isinstance(error, OSError) else None) or str(error)
        return _refuse(file, "unreadable", f"The file cannot be read: {reason}", hint=_hint_for(file, error))
    if len(raw) > MAX_BYTES:
        return _refuse(file, "file_too_large", f"The file is larger than {MAX_BYTES} bytes")
    return _decode(file, raw)


def _decode(file: SettingsFile, raw: bytes) -> FileText:
    try:
        # Some editors on Windows start a file with a byte order mark.
        text = raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = raw.count(b"\n", 0, error.start) + 1
        return _refuse(file, "not_utf8", "The file is not UTF-8 text", line=line, hint="Save it as UTF-8")
    wrong = re.search(_NOT_TEXT, text)
    if wrong:
        line = text.count("\n", 0, wrong.start()) + 1
        message = f"The file contains the control character U+{ord(wrong[0]):04X}"
        return _refuse(file, "control_character", message, line=line, hint="Remove it")
    return FileText(text)


def _refuse(file: SettingsFile, code: str, message: str, *, line: int | None = None, hint: str = "") -> FileText:
    problem = Problem(severity="error", code=code, message=message, file=file.name, line=line, hint=hint)
    return FileText("", (problem,))


def _hint_for(file: SettingsFile, error: Exception) -> str:
    if not isinstance(error, FileNotFoundError):
        return ""
    if file.path.is_symlink():
        return "It is a symbolic link whose target is missing"
    return "Check the path, or run `agent config init` to create one"


def _exists(path: Path) -> bool:
    """Return True if the path exists, even as a broken link, so that a broken file is reported instead of skipped."""
    try:
        os.lstat(path)
    except (FileNotFoundError, NotADirectoryError, PermissionError):
        # Services often run with the home folder of another user, without permission to read it.
        return False
    except OSError:
        return True
    # A confined program may be creating this file right now; it is moved away when the program ends.
    return not is_unsettled(str(path))


def _short_name(path: Path, *, cwd: Path, home: Path) -> str:
    if path.is_relative_to(cwd):
        return str(path.relative_to(cwd))
    return f"~/{path.relative_to(home)}" if path.is_relative_to(home) else str(path)
