"""Address and token of the workspace's running server, in files that only its user can read."""

import json
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import cast
from urllib.parse import urlsplit

from msgspec import Struct

from metier.definitions.files.whole_file import replace_file
from metier.errors import UsageError

SERVERS = Path(".agent/servers")
"""Relative to the home folder. Contains a folder for each server address."""
TOKEN_VARIABLE = "AGENT_SERVER_TOKEN"  # noqa: S105 - the name of the variable
"""Overrides the token file for servers and for the commands that connect to them."""

_FILE = "served.json"


def get_private_folder(home: Path, *, host: str, port: int) -> Path:
    return home / SERVERS / f"{re.sub(r'[^A-Za-z0-9.-]', '_', host)}-{port}"


def write_token(folder: Path, token: str) -> Path:
    """Write the token to a file that is private from the start. Raises `UsageError`."""
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        folder.chmod(0o700)  # it may exist with other permissions
        file = folder / "token"
        replace_file(file, f"{token}\n".encode("ascii"))
    except OSError as error:
        raise UsageError(
            f"The token cannot be written to {str(folder)!r}: {error.strerror}",
            hint="Check the permissions of the folder",
        ) from error
    return file


def remove_token(file: Path, token: str) -> None:
    """Delete the token, unless another server has started at the address."""
    try:
        if file.read_text(encoding="ascii").strip() == token:
            file.unlink()
    except OSError:
        return


def get_token(url: str, *, home: Path, environ: Mapping[str, str]) -> str:
    """Return the token for the server at this address. Raises `UsageError` if there is none."""
    if given := environ.get(TOKEN_VARIABLE, "").strip():
        return given
    parts = urlsplit(url)
    port = parts.port or (443 if parts.scheme == "https" else 80)
    # Servers store the token under the address they listen on, by default 127.0.0.1.
    names = dict.fromkeys((parts.hostname or "", "127.0.0.1" if parts.hostname == "localhost" else ""))
    for name in names:
        file = get_private_folder(home, host=name, port=port) / "token"
        if name and file.is_file():
            return file.read_text(encoding="ascii").strip()
    raise UsageError(
        f"There is no token for the server at {url!r}",
        hint=f"Set {TOKEN_VARIABLE} to the token from the operator of the server",
    )


class Served(Struct, frozen=True, kw_only=True):
    url: str
    """Address for users, without a trailing slash."""
    folder: Path
    """Private folder of the server's user."""


def write_served(folder: Path, *, url: str, workspace: Path) -> None:
    """Record the address next to the token, when the server starts to listen."""
    said = {"url": url, "workspace": str(workspace), "pid": os.getpid()}
    replace_file(folder / _FILE, json.dumps(said).encode())


def remove_served(folder: Path) -> None:
    """Delete the record, unless another server has started at the address."""
    if _read(folder / _FILE).get("pid") == os.getpid():
        (folder / _FILE).unlink(missing_ok=True)


def find_served(home: Path, workspace: Path) -> Served | None:
    """Find a running server of this user and machine for the workspace."""
    for file in sorted((home / SERVERS).glob(f"*/{_FILE}")):
        said = _read(file)
        # A server that was killed leaves its record.
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
    # `kill` with 0 or a negative number means a process group.
    if not isinstance(pid, int) or pid <= 0:
        return False
    try:
        os.kill(pid, 0)  # sends nothing, but fails if the process is gone
    # Also EPERM: then the process belongs to another user, so the ID was reused after the server ended.
    except OSError:
        return False
    return True
