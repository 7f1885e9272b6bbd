"""The child's side of `json_lines`. Standard library only, because it is imported for every call of an `impl.py`."""

import hashlib
import os
import sys
from io import TextIOWrapper
from pathlib import Path
from types import ModuleType
from typing import BinaryIO, cast


def take_streams() -> tuple[BinaryIO, BinaryIO]:
    """Return the streams for requests and replies.

    The called code gets an empty standard input, and its standard output goes to the log, so that nothing it prints is
    read as a reply.
    """
    requests, replies = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.dup2(2, 1)
    os.close(nothing)
    # Without line buffering, a killed process would lose the lines that it has printed.
    cast("TextIOWrapper", sys.stdout).reconfigure(line_buffering=True)  # the interpreter's own stream
    return requests, replies


def open_private_package(folder: Path) -> str:
    """Create a package for the Python files of a folder, and return its name.

    Relative imports work, `sys.path` is unchanged, and two skills can have modules of the same name.
    """
    name = f"_metier_skill_{hashlib.sha256(str(folder).encode()).hexdigest()[:16]}"
    package = ModuleType(name)
    # A module with a path is a package to the import system; no `__init__.py` is needed.
    package.__path__ = [str(folder)]
    sys.modules[name] = package
    return name
