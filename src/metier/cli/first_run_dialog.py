"""`agent` without a command: open the chat. The first time, ask for provider, model, permissions and settings file."""

import getpass
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Literal

import anyio
from msgspec import Struct

from metier.cli.chat.command import talk
from metier.cli.shared.context import current_settings, current_workspace, home_folder
from metier.cli.shared.new_file import write_new_file
from metier.cli.shared.open_host import needs_model
from metier.cli.shared.output import printable, warn_line
from metier.cli.trust import is_trusted_folder, trust_new_folder
from metier.definitions.files.user_folders import get_config_folder
from metier.errors import MetierError, UsageError
from metier.providers.options import OFFLINE
from metier.providers.registry import BUILT_IN, check_base_url
from metier.runtime.chat.chats import ChatRequest
from metier.runtime.provider_setup import (
    Candidate,
    ModelChoice,
    check_candidate,
    list_candidates,
    propose_model,
    render_settings,
)
from metier.settings.discovery import FILE_NAME
from metier.settings.resolution import LoadedSettings
from metier.telemetry.amounts import format_count

type ReadLine = Callable[[str], str]
"""Show a prompt and return the line typed behind it. Raises `EOFError` at the end of the input."""

type Scope = Literal["everywhere", "here"]

PROFILES: Sequence[tuple[Literal["guarded", "permissive", "strict"], str]] = (
    ("guarded", "asks before every change"),
    ("permissive", "makes changes without asking"),
    ("strict", "asks, and runs commands in a sandbox"),
)
_MAX_SHOWN = 20
"""Maximum number of listed models; the name of any other can be typed."""


class SetUp(Struct, frozen=True, kw_only=True):
    """The user's choices."""

    choice: ModelChoice
    scope: Scope
    key: tuple[str, str] | None = None
    """A variable and the key that was typed, for this process only."""


class Dialogue(Struct, frozen=True, kw_only=True):
    read_line: ReadLine
    read_secret: ReadLine
    environ: Mapping[str, str]

    def hold(self, *, may_write_here: bool) -> SetUp:
        """Ask until everything is known. Raises `EOFError` if the user exits."""
        warn_line("Welcome to Metier. Four questions set it up. Press Ctrl-C to quit; nothing is saved until the end.")
        candidate, models, key = self._choose_provider()
        model = self._choose_model(candidate, models) if candidate.provider != "offline" else ""
        profile = PROFILES[self._choose("Permissions:", [f"{name:<12} {summary}" for name, summary in PROFILES])][0]
        scope: Scope = "everywhere"
        if may_write_here:
            places = ["all folders without an agent.yaml (your user settings)", "this folder only (./agent.yaml)"]
            scope = "everywhere" if self._choose("Use these settings in:", places) == 0 else "here"
        choice = ModelChoice(provider=candidate.provider, model=model, base_url=candidate.base_url, profile=profile)
        return SetUp(choice=choice, scope=scope, key=key)

    def _choose_provider(self) -> tuple[Candidate, tuple[str, ...], tuple[str, str] | None]:
        """Repeat until a provider accepts the key and answers."""
        found = anyio.run(list_candidates, self.environ)
        rows = [f"{each.label:<12} {each.detail}" for each in found]
        while True:
            picked = self._choose("Choose a model provider:", [*rows, "Other        a model server at another address"])
            try:
                candidate = found[picked] if picked < len(found) else self._read_address()
                key = self._read_key(candidate) if candidate.readiness == "no_key" else None
                environ = {**self.environ, **({key[0]: key[1]} if key else {})}
                return candidate, self._check(candidate, environ), key
            except MetierError as error:
                warn_line(f"error: {error.message}" + (f"\nhint: {error.hint}" if error.hint else ""))

    def _check(self, candidate: Candidate, environ: Mapping[str, str]) -> tuple[str, ...]:
        if candidate.provider == "offline":
            return ()
        warn_line(f"Connecting to {candidate.label} …")
        models = candidate.models or anyio.run(check_candidate, candidate, environ)
        warn_line(f"Connected{f': {format_count(len(models), "model")}' if models else ''}.")
        return models

    def _read_address(self) -> Candidate:
        address = self.read_line("Server URL, such as http://localhost:8080/v1: ").strip()
        check_base_url(address)
        if not address:
            raise UsageError("The server URL is empty")
        return Candidate(provider="openai", label=address, readiness="server", detail="", base_url=address)

    def _read_key(self, candidate: Candidate) -> tuple[str, str]:
        variable = BUILT_IN[candidate.provider].keys[0]
        warn_line(f"Metier never saves keys. To keep this one, add `export {variable}=…` to your shell profile.")
        key = self.read_secret(f"{variable} (this session only, hidden): ").strip()
        if not key:
            raise UsageError(
                "The key is empty", hint=f"Set {variable} and run `agent` again, or choose another provider"
            )
        return variable, key

    def _choose_model(self, candidate: Candidate, models: tuple[str, ...]) -> str:
        proposed = propose_model(candidate, models)
        if len(models) == 1:
            return models[0]
        first = (proposed,) if proposed else ()
        shown = (*first, *(model for model in models if model != proposed))[:_MAX_SHOWN]
        if shown:
            more = f"; type the name of one of {len(models) - len(shown)} others" if len(models) > len(shown) else ""
            return self._choose_or_type(f"Choose a model by number or name{more}:", shown, models)
        while not (name := self.read_line("Model name: ").strip()):
            warn_line("Enter a model name")
        return name

    def _choose_or_type(self, question: str, shown: Sequence[str], known: Sequence[str]) -> str:
        self._list(question, shown)
        while True:
            word = self.read_line("[1]: ").strip() or "1"
            if word.isdecimal() and 1 <= int(word) <= len(shown):
                return shown[int(word) - 1]
            if not word.isdecimal() and (not known or word in known):
                return word
            warn_line("Enter one of the numbers or a model name from the provider")

    def _choose(self, question: str, rows: Sequence[str]) -> int:
        """Ask for one of the rows and return its index; Enter chooses the first."""
        self._list(question, rows)
        while True:
            word = self.read_line("[1]: ").strip() or "1"
            if word.isdecimal() and 1 <= int(word) <= len(rows):
                return int(word) - 1
            warn_line(f"Enter a number from 1 to {len(rows)}")

    def _list(self, question: str, rows: Sequence[str]) -> None:
        warn_line(f"\n{question}")
        for number, row in enumerate(rows, start=1):
            warn_line(f"  {number:>2}  {row}")


def export_key(set_up: SetUp) -> None:
    """Set a typed key in the environment of this process; it is never written to a file."""
    if set_up.key is not None:
        os.environ[set_up.key[0]] = set_up.key[1]


def start() -> int:
    """Open the chat, after the setup if no provider is configured."""
    first = ""
    if needs_set_up(current_settings(None, {})):
        try:
            first = set_up()
        except EOFError:
            warn_line("")
            return 0
    return talk(ChatRequest(), first=first)


def needs_set_up(loaded: LoadedSettings) -> bool:
    """Return True without a settings file if no provider, no key, or no model for the key's server is set."""
    provider = loaded.settings.model.provider
    if loaded.file is not None or provider == OFFLINE:
        return False
    if needs_model(loaded):
        return True
    if loaded.origins["model.provider"].kind != "default":
        return False
    registration = BUILT_IN.get(provider)
    return registration is not None and not any(os.environ.get(key, "").strip() for key in registration.keys)


def set_up() -> str:
    """Hold the dialogue, write the settings and return the first task, which may be empty. Raises `EOFError`."""
    cwd, home = current_workspace(), home_folder()
    is_project = cwd not in (home, Path(cwd.anchor))
    decided = Dialogue(read_line=_read_line, read_secret=_read_secret, environ=os.environ).hold(
        # A settings file in an untrusted folder is applied only in part.
        may_write_here=is_project and is_trusted_folder(cwd)
    )
    file = write_settings(decided, cwd=cwd, home=home)
    warn_line(f"\nWrote {file}. List settings with `agent config show`, change one with `agent config set KEY VALUE`.")
    export_key(decided)
    return _read_line("\nWhat would you like to do? (Enter opens the chat): ").strip()


def write_settings(decided: SetUp, *, cwd: Path, home: Path) -> Path:
    """Write the settings file. Raises `UsageError` if one exists by now; it is never overwritten."""
    file = cwd / FILE_NAME if decided.scope == "here" else get_config_folder(os.environ, home) / FILE_NAME
    write_new_file(file, render_settings(decided.choice), overwrite=False)
    if decided.scope == "here":
        trust_new_folder(cwd)
    return file


def _read_line(prompt: str) -> str:
    sys.stderr.write(printable(prompt))
    sys.stderr.flush()
    # Not `input`, which may write its prompt to stdout.
    line = sys.stdin.readline()
    if not line:
        raise EOFError
    return line


def _read_secret(prompt: str) -> str:
    return getpass.getpass(printable(prompt), stream=sys.stderr)
