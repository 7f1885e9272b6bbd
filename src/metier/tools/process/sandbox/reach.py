"""What a confined program can get at. Values; every level of the sandbox is built from the same ones."""

from collections.abc import Iterable
from dataclasses import field
from pathlib import Path

from metier.dataclass import dataclass
from metier.tools.process.sandbox.surroundings import Closed


@dataclass(frozen=True, slots=True, kw_only=True)
class Reach:
    """Paths are absolute and exist. What is not named here, in `surroundings` or in the scratch folder is not there."""

    workspace: Path
    """With every link on the way resolved."""
    readable: tuple[Path, ...] = ()
    writable: tuple[Path, ...] = ()
    closed: Closed = field(default_factory=Closed)
    network: bool = False

    def inside(self, paths: Iterable[Path]) -> tuple[Path, ...]:
        """Those beneath the workspace, which would be writable as parts of it."""
        return tuple(path for path in paths if path != self.workspace and path.is_relative_to(self.workspace))

    def list_closed(self) -> tuple[Path, ...]:
        """What of the workspace may be read and not written, made or moved."""
        absent = (self.workspace / name for name in self.closed.absent)
        return tuple(dict.fromkeys((*self.closed.read_only, *self.inside(self.readable), *absent)))

    def covers(self, path: Path) -> bool:
        """It is already there to be read."""
        return any(path.is_relative_to(place) for place in (self.workspace, *self.readable, *self.writable))
