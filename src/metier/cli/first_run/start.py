"""What a bare `agent` does: open the chat; before the first one, set up who answers. Not at a terminal: nothing."""

import getpass
import os
import sys
from pathlib import Path

from metier.cli.chat.command import talk
from metier.cli.first_run.dialogue import Dialogue, SetUp, keep_key
from metier.cli.shared.context import current_directory, current_settings, home_folder
from metier.cli.shared.new_file import write_new_file
from metier.cli.shared.output import printable, warn_line
from metier.cli.trust import speaks_for_person, trust_new_folder
from metier.providers.options import OFFLINE
from metier.providers.registry import BUILT_IN
from metier.runtime.chat.chats import ChatRequest
from metier.runtime.providers.setup import render_settings
from metier.settings.discovery import FILE_NAME, user_folder
from metier.settings.load import LoadedSettings


def start() -> int:
    """Open the chat at a terminal; where nothing says who answers, set that up first."""
    first = ""
    if needs_set_up(current_settings(None, {})):
        try:
            first = set_up()
        except EOFError:
            warn_line("")
            return 0
    return talk(ChatRequest(), first=first)


def needs_set_up(loaded: LoadedSettings) -> bool:
    """Nothing says who answers: no settings file, no variable, no key of the provider that is the default."""
    provider = loaded.settings.model.provider
    if loaded.file is not None or loaded.origins["model.provider"].kind != "default" or provider == OFFLINE:
        return False
    registration = BUILT_IN.get(provider)
    return registration is not None and not any(os.environ.get(key, "").strip() for key in registration.keys)


def set_up() -> str:
    """Hold the dialogue, write the settings, and ask for a first task; it may be empty. Raises `EOFError`."""
    cwd, home = current_directory(), home_folder()
    is_project = cwd not in (home, Path(cwd.anchor))
    decided = Dialogue(read_line=_read_line, read_secret=_read_secret, environ=os.environ).hold(
        # A file in a folder that came from elsewhere would count only in part.
        may_write_here=is_project and speaks_for_person(cwd)
    )
    file = write_settings(decided, cwd=cwd, home=home)
    warn_line(f"\nWrote {file}. `agent config set KEY VALUE` changes a setting, `agent config show` lists them.")
    keep_key(decided)
    return _read_line("\nWhat shall it do first? Enter opens the chat: ").strip()


def write_settings(decided: SetUp, *, cwd: Path, home: Path) -> Path:
    """Raises `UsageError` where the file is there by now; it is never replaced."""
    file = cwd / FILE_NAME if decided.scope == "here" else user_folder(os.environ, home) / FILE_NAME
    write_new_file(file, render_settings(decided.choice), overwrite=False)
    if decided.scope == "here":
        trust_new_folder(cwd)
    return file


def _read_line(prompt: str) -> str:
    sys.stderr.write(printable(prompt))
    sys.stderr.flush()
    line = sys.stdin.readline()
    if not line:
        raise EOFError
    return line


def _read_secret(prompt: str) -> str:
    return getpass.getpass(printable(prompt), stream=sys.stderr)
