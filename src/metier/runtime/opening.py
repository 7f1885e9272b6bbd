"""Open the host of a folder: its settings, its trust, and what they warn about."""

from collections.abc import Mapping
from pathlib import Path

from metier.dataclass import dataclass
from metier.definitions.problems import Problem
from metier.errors import UsageError
from metier.runtime.host import Host
from metier.runtime.workspace.hooks import list_withheld_hooks
from metier.runtime.workspace.withheld import list_withheld
from metier.settings.load import LoadedSettings, load_settings


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenedHost:
    host: Host
    loaded: LoadedSettings
    """The settings with the origin of each value."""
    warnings: tuple[Problem, ...]
    """What the settings and the trust of the folder warn about; the caller shows or logs them."""


def open_host(
    folder: Path, *, environ: Mapping[str, str], home: Path, flags: Mapping[str, str] | None = None, config: Path | None
) -> OpenedHost:
    """The host of a folder; `flags` are texts by dotted key, `config` is another settings file than that of the folder.

    Raises `UsageError` where there is no such folder, and `ConfigError` with every problem of the settings.
    """
    if not folder.is_dir():
        raise UsageError(f"Folder {str(folder)!r} does not exist", hint="Give the folder of a workspace")
    loaded = load_settings(flags=flags or {}, environ=environ, cwd=folder, home=home, config=config)
    host = Host(settings=loaded.settings, workspace=folder, home=home, environ=dict(environ), trust=loaded.trust)
    return OpenedHost(
        host=host, loaded=loaded, warnings=(*loaded.warnings, *list_withheld(host), *list_withheld_hooks(host))
    )
