"""Install commands for missing extras, by the way in which Metier was installed."""

import importlib.util
import json
import shlex
import sys
from pathlib import Path
from typing import NamedTuple
from urllib.parse import unquote, urlsplit

PACKAGE = "metier"


class _Source(NamedTuple):
    """The source that Metier was installed from."""

    address: str = ""
    """Address for a requirement `metier @ …`; empty for a package index."""
    folder: str = ""
    """Folder of an editable install."""


def hint_extra(extra: str) -> str:
    """Return the command that adds an extra: for a clone, `uv tool`, `pipx`, or any other environment."""
    source, prefix = _get_source(), Path(sys.prefix)
    if source.folder:
        return f"Install it: {_installer()} -e {shlex.quote(f'{source.folder}[{extra}]')}"
    wanted = shlex.quote(f"{PACKAGE}[{extra}] @ {source.address}" if source.address else f"{PACKAGE}[{extra}]")
    if (prefix / "uv-receipt.toml").is_file():
        return f"Install it: uv tool install --force {wanted}"
    if (prefix / "pipx_metadata.json").is_file():
        return f"Install it: pipx install --force {wanted}"
    return f"Install it: {_installer()} {wanted}"


def _installer() -> str:
    """Return this environment's installer: the `pip` of the shell may belong to another one."""
    python = shlex.quote(sys.executable)
    has_pip = importlib.util.find_spec("pip") is not None
    return f"{python} -m pip install" if has_pip else f"uv pip install --python {python}"


def _get_source() -> _Source:
    """Return the source that the installer recorded (`direct_url.json`, PEP 610); an index records none."""
    # Without `importlib.metadata`: its import would slow down the start of every command by 10 %.
    files = (file for entry in sys.path for file in Path(entry).glob(f"{PACKAGE}-*.dist-info/direct_url.json"))
    try:
        recorded = json.loads(next(files).read_text(encoding="utf-8"))
        url = urlsplit(str(recorded["url"]))
        if "vcs_info" in recorded:
            vcs = recorded["vcs_info"]
            return _Source(address=f"{vcs['vcs']}+{url.geturl()}@{vcs.get('requested_revision') or vcs['commit_id']}")
    except (StopIteration, OSError, ValueError, KeyError, TypeError):
        return _Source()
    path = unquote(url.path)
    if recorded.get("dir_info", {}).get("editable"):
        return _Source(folder=path)
    is_gone = url.scheme == "file" and not Path(path).exists()
    return _Source(address="file:///PATH/TO/METIER" if is_gone else url.geturl())
