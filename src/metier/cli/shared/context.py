"""The context of a command: workspace, home folder and current settings."""

import os
import sys
from collections.abc import Mapping
from pathlib import Path

from metier.errors import UsageError
from metier.settings.discovery import find_file, get_workspace
from metier.settings.keys import PATH_KEYS
from metier.settings.resolution import LoadedSettings, load_settings


def current_settings(config: Path | None, flags: Mapping[str, str]) -> LoadedSettings:
    """Load the settings; `flags` are texts by dotted key. Raises `ConfigError` with every problem."""
    flags, config = resolve_given(flags, config)
    return load_settings(flags=flags, environ=os.environ, cwd=current_workspace(), home=home_folder(), config=config)


def current_file(config: Path | None) -> Path | None:
    """Return the settings file that `current_settings` reads."""
    _, config = resolve_given({}, config)
    found = find_file(config=config, environ=os.environ, cwd=current_workspace(), home=home_folder())
    return found.path if found else None


def current_workspace() -> Path:
    """Return the workspace: the current directory or one of its parents."""
    return get_workspace(current_directory(), home=home_folder())


def resolve_given(flags: Mapping[str, str], config: Path | None) -> tuple[Mapping[str, str], Path | None]:
    """Resolve paths of options against the current directory, which may be inside the workspace."""
    cwd = current_directory()
    if cwd == current_workspace():
        return flags, config
    resolved = {
        key: str(cwd / text) if key in PATH_KEYS and not text.startswith("~") else text for key, text in flags.items()
    }
    return resolved, cwd / config if config is not None else None


def current_directory() -> Path:
    try:
        return Path.cwd()
    except FileNotFoundError as error:
        raise UsageError("The current directory no longer exists", hint="Change to another directory") from error


def home_folder() -> Path:
    try:
        return Path.home()
    except RuntimeError as error:
        raise UsageError("The home directory is unknown", hint="Set HOME") from error


def is_at_terminal() -> bool:
    """Return True if the user can be asked: stdin and stderr are terminals. A closed stream is None."""
    # Not stdout: with `agent run … > file` the questions still appear, because they are written to stderr.
    return all(stream is not None and not stream.closed and stream.isatty() for stream in (sys.stdin, sys.stderr))
