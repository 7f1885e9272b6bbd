"""Where runs are kept when no setting says so: in the project; outside of projects, in the person's data folder."""

from collections.abc import Mapping
from pathlib import Path

KEY = "logging.jsonl_dir"


def find_default_runs(*, cwd: Path, home: Path, environ: Mapping[str, str]) -> Path | None:
    """The folder instead of `./runs`, or nothing in a project.

    The home folder and the root of a disk are no projects. Runs that lie there from an earlier version stay in use.
    """
    if cwd not in (home, Path(cwd.anchor)) or (cwd / "runs" / "state.db").exists():
        return None
    # Not platformdirs; see `get_cache_folder`.
    configured = Path(environ.get("XDG_DATA_HOME", ""))
    return (configured if configured.is_absolute() else home / ".local" / "share") / "agent" / "runs"
