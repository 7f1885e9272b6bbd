"""How much a package may bring along, and how long fetching it may take."""

from metier.dataclass import dataclass

MEGABYTE = 1024 * 1024
MORE_FILES = "Name the folder of one skill with #folder, or allow more with --max-files"


@dataclass(frozen=True, slots=True, kw_only=True)
class InstallLimits:
    max_files: int = 2_000
    max_bytes: int = 50 * MEGABYTE
    """All files of the skill together."""
    max_file_bytes: int = 20 * MEGABYTE
    max_repository_bytes: int = 1024 * MEGABYTE
    """What git may download to get at the skill."""
    warn_free_bytes: int = 100 * MEGABYTE
    """Less free disk than this is worth a warning."""
    min_free_bytes: int = 20 * MEGABYTE
    """An installation that would leave less than this is refused."""
    timeout_seconds: float = 300.0
    """One git command."""
    attempts: int = 3
