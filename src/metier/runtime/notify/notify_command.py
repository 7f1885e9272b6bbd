"""`notify.command`: a program of the user that runs outside of the sandbox, and the workspace files it may use.

It starts in the home folder with a clean environment, and is searched only where confined programs can't write. A
workspace file in its command line must have the hash that the user accepted with `agent notify accept`, which stores it
in `~/.agent/notify/<digest>.json`.
"""

import hashlib
import json
import os
from datetime import datetime
from pathlib import Path

from pydantic import AwareDatetime, TypeAdapter, ValidationError

from metier.definitions.files.whole_file import replace_file
from metier.errors import ConfigError, UsageError
from metier.programs.code import CommandLine, ProgramCode, get_program_code
from metier.programs.launcher import NEUTRAL_FOLDER, NOTIFICATION, Program, use_accepted_program
from metier.programs.search import build_trusted_path, is_within
from metier.runtime.confinement import list_writable
from metier.runtime.host import Host, shorten_path
from metier.tools.process.child_environment import build_environment
from metier.values import Value

FOLDER_VARIABLE = "AGENT_PROJECT_DIR"
_FOLDER = ".agent/notify"


class NotifyAcceptance(Value):
    """The accepted command of one workspace."""

    workspace: str
    command: tuple[str, ...]
    accepted_at: AwareDatetime
    code: str


_ACCEPTANCE: TypeAdapter[NotifyAcceptance] = TypeAdapter(NotifyAcceptance)


def get_notify_program(host: Host) -> Program:
    """Return the program, ready to start. Raises `ConfigError` if it may not run or is not found."""
    check_notify_command(host)
    line = _build_line(host)
    program = use_accepted_program(NOTIFICATION, line)
    if program is None:
        raise ConfigError(
            f"The program {line.words[0]!r} of notify.command is not found outside of the workspace",
            hint="Install it for your account, or write its absolute path",
        )
    return program


def locate_notify_folder(host: Host) -> Path:
    """Return the home folder, or a neutral one if confined programs can write to it.

    The command could load a file from its folder by a relative name.
    """
    return NEUTRAL_FOLDER if is_within(host.home, list_confined_folders(host)) else host.home


def check_notify_command(host: Host) -> None:
    """Raise `ConfigError` if the command runs workspace files whose current content the user has not accepted."""
    if not host.settings.notify.command:
        return
    code = get_notify_code(host)
    # Open: the command may load code from anywhere in the workspace, so no hash could cover it.
    if code.is_open:
        raise ConfigError(
            "notify.command may run any code of the workspace, where programs of a run write",
            hint="Put its script into a folder of its own, or outside of the workspace",
        )
    if not code.roots:
        return
    accepted = _find_acceptance(host)
    if accepted is None or accepted.code != code.digest():
        files = ", ".join(shorten_path(path, host.workspace.resolve()) for path in code.roots)
        state = "changed since you accepted them" if accepted is not None else "are not accepted"
        raise ConfigError(
            f"notify.command runs files of the workspace that {state}: {files}",
            hint="Review them, then run `agent notify accept`",
        )


def accept_notify_command(host: Host, *, code: str, now: datetime) -> None:
    """Accept the command with the workspace files that it runs.

    `code` is the digest of the files that the user was shown: a running program could change them before the answer.
    Raises `UsageError` if they differ now, and `OSError`.
    """
    if get_notify_code(host).digest() != code:
        raise UsageError("The files changed while you were asked", hint="Review them and accept them again")
    accepted = NotifyAcceptance(
        workspace=str(host.workspace),
        command=host.settings.notify.command,
        accepted_at=now,
        code=code,
    )
    path = _locate_acceptance(host)
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    replace_file(path, _ACCEPTANCE.dump_json(accepted, indent=1), durable=True)


def get_notify_code(host: Host) -> ProgramCode:
    """Return the files of the workspace that the command runs."""
    if not host.settings.notify.command:
        return ProgramCode()
    return get_program_code(_build_line(host), writable=list_confined_folders(host))


def list_notify_files(host: Host) -> tuple[Path, ...]:
    """List the files and folders of the command, which the programs of a run must not change."""
    return tuple(path for path in get_notify_code(host).roots if path.exists())


def list_confined_folders(host: Host) -> tuple[Path, ...]:
    """List the folders that confined programs can write to, in this run and in others."""
    return tuple(dict.fromkeys((host.workspace.resolve(), *list_writable(host))))


def _build_line(host: Host) -> CommandLine:
    words = tuple(_locate_word(word, host) for word in host.settings.notify.command)
    environment = build_environment(host.environ) | {
        "PATH": build_trusted_path(host.environ, writable=list_confined_folders(host)),
        FOLDER_VARIABLE: str(host.workspace),
    }
    return CommandLine(words=words, folder=locate_notify_folder(host), environment=environment)


def _locate_word(word: str, host: Host) -> str:
    """Return a workspace file as an absolute path, because the command starts in another folder."""
    path = host.workspace / word
    is_named = word and "\0" not in word and not word.startswith("-") and path.is_file()
    return os.path.normpath(path) if is_named else word


def _find_acceptance(host: Host) -> NotifyAcceptance | None:
    """Return the acceptance; None if it is missing or unreadable."""
    try:
        return _ACCEPTANCE.validate_json(_locate_acceptance(host).read_bytes())
    except (OSError, ValidationError):
        return None


def _locate_acceptance(host: Host) -> Path:
    # With the command: another one in the settings finds no acceptance.
    named = json.dumps([str(host.workspace.resolve()), *host.settings.notify.command])
    return host.home / _FOLDER / f"{hashlib.sha256(named.encode()).hexdigest()[:32]}.json"
