"""The agent's folders for settings, data and caches, by the XDG rules.

`platformdirs` is not used: it reads only the environment of this process, and on macOS it uses `~/Library`, while our
documentation promises the same paths on every system.
"""

from collections.abc import Mapping
from pathlib import Path


def get_config_folder(environ: Mapping[str, str], home: Path) -> Path:
    return _get_folder(environ.get("XDG_CONFIG_HOME", ""), home / ".config")


def get_data_folder(environ: Mapping[str, str], home: Path) -> Path:
    return _get_folder(environ.get("XDG_DATA_HOME", ""), home / ".local/share")


def get_cache_folder(environ: Mapping[str, str], home: Path) -> Path:
    return _get_folder(environ.get("XDG_CACHE_HOME", ""), home / ".cache")


def _get_folder(configured: str, default: Path) -> Path:
    # The XDG specification requires ignoring relative paths.
    base = Path(configured)
    return (base if base.is_absolute() else default) / "agent"
