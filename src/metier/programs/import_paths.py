"""Ignore import paths in the workspace, where programs of a run could plant modules.

Python imports `sitecustomize` from PYTHONPATH before the first line of Metier runs, so ignoring a path cannot undo a
module that is already there. It prevents a new one: a sandboxed run does not start while such a path is set.
"""

import os
import sys
from pathlib import Path

_ignored: list[str] = []


def ignore_workspace_imports(workspace: str) -> list[str]:
    """Remove PYTHONPATH entries in the workspace, and the current folder, for this process and its children.

    Return the removed entries as they were written, an empty entry as '.'.
    """
    root = os.path.realpath(workspace)
    own = [os.path.realpath(folder) for folder in (sys.prefix, sys.base_prefix, Path(__file__).parents[2])]
    named = os.environ.get("PYTHONPATH", "").split(os.pathsep) if os.environ.get("PYTHONPATH") else []
    exposed = [entry for entry in named if _is_exposed(entry, root, own)]
    if "" in sys.path and _is_exposed("", root, own):
        exposed.append("")
    if not exposed:
        return []
    # By real path: the same folder may be on `sys.path` under another name.
    found = {os.path.realpath(entry or os.curdir) for entry in exposed}
    sys.path[:] = [entry for entry in sys.path if os.path.realpath(entry or os.curdir) not in found]
    # For the children: `sys.path` of this process is already built.
    os.environ["PYTHONPATH"] = os.pathsep.join(entry for entry in named if entry not in exposed)
    # Some programs take an empty value for the current folder.
    if not os.environ["PYTHONPATH"]:
        del os.environ["PYTHONPATH"]
    _ignored[:] = list(dict.fromkeys(entry or os.curdir for entry in exposed))
    return list(_ignored)


def list_ignored_imports() -> tuple[str, ...]:
    """List the entries that `ignore_workspace_imports` removed."""
    return tuple(_ignored)


def _is_exposed(entry: str, root: str, own: list[str]) -> bool:
    path = os.path.realpath(entry or os.curdir)
    return _is_beneath(path, root) and not any(_is_beneath(path, folder) for folder in own)


def _is_beneath(path: str, folder: str) -> bool:
    return path == folder or path.startswith(folder.rstrip(os.sep) + os.sep)
