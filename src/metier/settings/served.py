"""Which server serves a workspace now: a note beside its token, so that other processes of the user can name it."""

import json
import os
from pathlib import Path
from typing import cast

from metier.dataclass import dataclass
from metier.settings.server_token import SERVERS

_FILE = "served.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class Served:
    url: str
    """As people reach it, without a slash at the end."""
    folder: Path
    """Belongs to the user of the server alone."""


def write_served(folder: Path, *, url: str, workspace: Path) -> None:
    """Written when the server begins to listen; the folder is that of its token."""
    said = {"url": url, "workspace": str(workspace), "pid": os.getpid()}
    fresh = folder / f".{_FILE}-{os.getpid()}"
    fresh.write_text(json.dumps(said), encoding="utf-8")
    fresh.replace(folder / _FILE)


def remove_served(folder: Path) -> None:
    """Unless another server has taken the address meanwhile."""
    if _read(folder / _FILE).get("pid") == os.getpid():
        (folder / _FILE).unlink(missing_ok=True)


def find_served(home: Path, workspace: Path) -> Served | None:
    """A server of this user and machine that serves the workspace and is alive."""
    for file in sorted((home / SERVERS).glob(f"*/{_FILE}")):
        said = _read(file)
        if said.get("workspace") == str(workspace) and _is_alive(said.get("pid")):
            return Served(url=str(said["url"]), folder=file.parent)
    return None


def _read(file: Path) -> dict[str, object]:
    try:
        found = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return cast("dict[str, object]", found) if isinstance(found, dict) else {}


def _is_alive(pid: object) -> bool:
    if not isinstance(pid, int) or pid <= 0:
        return False
    try:
        os.kill(pid, 0)
    except OSError:
        return False
    return True
