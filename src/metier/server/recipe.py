"""Everything that a server process is started with. Plain values: the process of every worker gets the same."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from metier.ids import get_user
from metier.runtime.opened_host import OpenedHost, open_host


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    folder: Path
    home: Path
    environ: Mapping[str, str] = field(repr=False)
    token: str = field(repr=False)
    """The server's own token, which makes its holder an operator."""
    key: bytes = field(repr=False)
    """Signs sessions."""
    private: Path
    """A folder of this server that its user alone may read, for one-time codes."""
    port: int
    """The one that it listens at."""
    config: Path | None = None
    flags: Mapping[str, str] = field(default_factory=dict[str, str])
    owner: str = field(default_factory=lambda: get_user() or "operator")
    """Under which name the holder of the server's own token goes."""

    def open(self) -> OpenedHost:
        """Raises `UsageError`, `ConfigError`."""
        return open_host(self.folder, environ=self.environ, home=self.home, flags=self.flags, config=self.config)
