"""The host of a folder: its settings, its trust, and their warnings."""

from collections.abc import Mapping
from pathlib import Path

from msgspec import Struct

from metier.definitions.policy_file import POLICY_FILE, read_policy_file
from metier.definitions.problems import Problem
from metier.errors import ConfigError, UsageError
from metier.programs.search import exclude_folders
from metier.runtime.host import Host
from metier.runtime.workspace.hooks import list_withheld_hooks
from metier.settings.resolution import LoadedSettings, load_settings
from metier.skills.workspace_trust import digest_bytes


def list_withheld(host: Host) -> tuple[Problem, ...]:
    """Warn if the policy of a trusted folder changed since the user trusted it. Settings are reported separately."""
    try:
        policy = read_policy_file(host.workspace)
    except ConfigError:
        return ()
    if not host.trust.is_trusted or host.trust.counts("policy", digest_bytes(policy)):
        return ()
    return (
        Problem(
            severity="warning",
            code="policy_withheld",
            message="The policy changed since you trusted this folder: what it allows does not count",
            file=POLICY_FILE,
            hint="Review it, then run `agent trust`",
        ),
    )


class OpenedHost(Struct, frozen=True, kw_only=True):
    host: Host
    loaded: LoadedSettings
    """Settings with the origin of each value."""
    warnings: tuple[Problem, ...]
    """Warnings about the settings and the folder's trust; the caller shows or logs them."""


def open_host(
    folder: Path, *, environ: Mapping[str, str], home: Path, flags: Mapping[str, str] | None = None, config: Path | None
) -> OpenedHost:
    """Open the host of a folder. `flags` are values by dotted key; `config` replaces the folder's settings file.

    Raises `UsageError` if the folder doesn't exist, and `ConfigError` with every problem of the settings.
    """
    if not folder.is_dir():
        raise UsageError(f"Folder {str(folder)!r} does not exist", hint="Give the folder of a workspace")
    loaded = load_settings(flags=flags or {}, environ=environ, cwd=folder, home=home, config=config)
    host = Host(
        settings=loaded.settings,
        workspace=folder,
        home=home,
        environ=dict(environ),
        trust=loaded.trust,
        flags=tuple(sorted(flags or {})),
    )
    # Sandboxed programs write there, so no program from these folders may be started outside of the sandbox.
    exclude_folders(host.opened)
    return OpenedHost(
        host=host, loaded=loaded, warnings=(*loaded.warnings, *list_withheld(host), *list_withheld_hooks(host))
    )
