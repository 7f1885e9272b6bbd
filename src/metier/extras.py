"""Say how a part of Metier that is not installed is installed, in the way in which Metier itself was."""

import shlex
import sys
from pathlib import Path


def hint_extra(extra: str) -> str:
    """The command that adds an extra: for a clone, `uv tool`, `pipx`, or `pip` in any other environment."""
    prefix = Path(sys.prefix)
    wanted = shlex.quote(f"metier[{extra}]")
    if (prefix / "uv-receipt.toml").is_file():
        return f"Install it: uv tool install {wanted}"
    if (prefix / "pipx_metadata.json").is_file():
        return f"Install it: pipx install --force {wanted}"
    clone = _find_clone()
    if clone is not None:
        return f"Install it: pip install -e {shlex.quote(f'{clone}[{extra}]')}"
    return f"Install it: pip install {wanted}"


def _find_clone() -> Path | None:
    """The folder that this package is imported from, if it is a clone and not an installed copy."""
    root = Path(__file__).resolve().parents[2]
    return root if (root / "pyproject.toml").is_file() and (root / "dev").is_file() else None
