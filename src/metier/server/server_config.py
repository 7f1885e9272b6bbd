"""Configuration of a server process, in plain values that can be sent to other processes."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from metier.ids import get_user
from metier.runtime.opened_host import OpenedHost, open_host


# A dataclass, not a Struct: its `repr` must not show the token and the key.
@dataclass(frozen=True, slots=True, kw_only=True)
class ServerConfig:
    folder: Path
    home: Path
    environ: Mapping[str, str] = field(repr=False)
    token: str = field(repr=False)
    """The server's own token, which makes its holder an operator."""
    key: bytes = field(repr=False)
    """Signs sessions."""
    private: Path
    """Folder for one-time codes, readable only by the user that runs the server."""
    port: int
    """Port that the server listens on."""
    settings_file: Path | None = None
    """The file of `--config`; None searches the usual places."""
    flags: Mapping[str, str] = field(default_factory=dict[str, str])
    owner: str = field(default_factory=lambda: get_user() or "operator")
    """User name of the holder of the server's own token."""

    def open(self) -> OpenedHost:
        """Read the settings. Raises `UsageError`, `ConfigError`."""
        return open_host(self.folder, environ=self.environ, home=self.home, flags=self.flags, config=self.settings_file)
