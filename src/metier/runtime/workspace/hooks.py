"""The hooks of a workspace: their files and their trust.

Hooks run code. Those of an untrusted checkout don't run before `agent trust`.
"""

import hashlib
import json
from collections.abc import Iterable
from pathlib import Path

from msgspec import Struct

from metier.definitions.files.contained_path import is_absent, read_contained
from metier.definitions.problems import Problem
from metier.definitions.skills.sources import WORKSPACE_FOLDERS
from metier.definitions.text.yaml_text import Mapping, read_yaml
from metier.errors import ConfigError
from metier.runtime.host import Host
from metier.tools.hook_definitions import HookCommand, HookReading, pin_files, read_hooks, read_hooks_text
from metier.values import dump_fields

FILES = tuple(f"{folder}/hooks.yaml" for folder in WORKSPACE_FOLDERS)
SETTINGS = "agent.yaml"
CLAUDE_FILES = (".claude/settings.json", ".claude/settings.local.json")
MAX_BYTES = 256 * 1024


class ActiveHooks(Struct, frozen=True, kw_only=True):
    hooks: tuple[HookCommand, ...] = ()
    withheld: tuple[str, ...] = ()
    """Files whose hooks do not run, because they are not trusted."""


def load_hooks(host: Host) -> ActiveHooks:
    """Load the hooks of a new run. Raises `ConfigError` with every problem of their files."""
    found = _get_hooks(host)
    if not found.shared and not found.own:
        return ActiveHooks()
    is_counted = host.trust.counts("hooks", digest_hooks(found.shared))
    own = found.own if host.trust.is_trusted else tuple(hook for hook in found.own if not hook.files)
    left_out = [hook.source for hook in found.shared if not is_counted]
    left_out += [hook.source for hook in found.own if hook not in own]
    return ActiveHooks(hooks=(*own, *(found.shared if is_counted else ())), withheld=tuple(dict.fromkeys(left_out)))


def list_hook_lines(host: Host) -> list[str]:
    """Describe the hooks that the user should review before trusting the folder."""
    return [f"{hook.source}: {hook.event} runs {hook.command}" for hook in _get_hooks(host).shared]


def digest_workspace_hooks(host: Host) -> str:
    """Digest the content that the user trusts: the commands, and the workspace files in them."""
    return digest_hooks(_get_hooks(host).shared)


def digest_hooks(hooks: Iterable[HookCommand]) -> str:
    # With the hashes of the files in the commands: trust covers what runs, not only how it is started.
    words = [dump_fields(hook) for hook in hooks]
    return hashlib.sha256(json.dumps(words, sort_keys=True).encode()).hexdigest()


def list_withheld_hooks(host: Host) -> tuple[Problem, ...]:
    """Return a warning if hooks of this folder do not run."""
    try:
        withheld = load_hooks(host).withheld
    except ConfigError:
        return ()  # reported by commands that need the hooks
    return tuple(
        Problem(
            severity="warning",
            code="hooks_withheld",
            message="Hooks do not run: this folder came from elsewhere, and you have not trusted what they are now",
            file=file,
            hint="Read them and the scripts they name, then run `agent trust`",
        )
        for file in withheld
    )


class _Found(Struct, frozen=True, kw_only=True):
    own: tuple[HookCommand, ...]
    """Hooks of the user's settings and the home folder."""
    shared: tuple[HookCommand, ...]
    """Hooks of the workspace: its settings file and its other files."""


def _get_hooks(host: Host) -> _Found:
    trust = host.trust
    settings = read_hooks_text(host.settings.hooks if trust.are_hooks_own else "", file=SETTINGS)
    own, shared = [settings], [read_hooks_text(trust.settings_hooks, file=SETTINGS)]
    shared += [_read_yaml(host, name) for name in FILES]
    is_asked_by_user, is_asked_by_folder = (
        any(reading.imports == "claude" for reading in readings) for readings in (own, shared)
    )
    if is_asked_by_user or is_asked_by_folder:
        shared += [_read_claude(host.workspace / name, within=host.workspace) for name in CLAUDE_FILES]
    # Only the user decides to run hooks of the home folder. A folder from elsewhere can't request it, even if it is
    # trusted: `agent trust` covers only the content of the folder.
    if is_asked_by_user or (is_asked_by_folder and not trust.origin):
        own.append(_read_claude(host.home / CLAUDE_FILES[0], within=host.home))
    if problems := [problem for reading in (*own, *shared) for problem in reading.problems]:
        raise ConfigError("The hooks cannot be used", hint="Correct the lines above", problems=problems)
    return _Found(own=_collect(own, host.workspace), shared=_collect(shared, host.workspace))


def _collect(readings: Iterable[HookReading], workspace: Path) -> tuple[HookCommand, ...]:
    return pin_files([hook for reading in readings for hook in reading.hooks], workspace)


def _read_yaml(host: Host, name: str) -> HookReading:
    if is_absent(f"{host.workspace}/{name}"):  # fast path: few workspaces have hooks, and each run checks
        return HookReading()
    text = _read_text(host.workspace / name, within=host.workspace)
    if text is None:
        return HookReading()
    document = read_yaml(text, file=name)
    if document.root is None:
        return HookReading(problems=document.problems)
    section = document.root.find("hooks") if isinstance(document.root, Mapping) else None
    return read_hooks(section.value if section else document.root, file=name)


def _read_claude(file: Path, *, within: Path) -> HookReading:
    text = _read_text(file, within=within)
    name = str(file.relative_to(within)) if within != Path.home() else f"~/{file.relative_to(within)}"
    return HookReading() if text is None else read_hooks_text(text, file=name, is_foreign=True)


def _read_text(file: Path, *, within: Path) -> str | None:
    """Read a file; None if it doesn't exist. Raises `ConfigError`."""
    try:
        # Editors on Windows may write a byte order mark.
        return read_contained(file, within=within, limit=MAX_BYTES).decode("utf-8-sig")
    except FileNotFoundError:
        return None
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
        raise ConfigError(f"The hooks '{file}' cannot be read: {reason}") from error
