"""Import the Python of a skill under a name of its own. For worker processes: standard library only."""

import hashlib
import sys
from pathlib import Path
from types import ModuleType


def open_private_package(folder: Path) -> str:
    """A package of its own for one skill: relative imports work, `sys.path` stays, equal names of skills stay apart."""
    name = f"_metier_skill_{hashlib.sha256(str(folder).encode()).hexdigest()[:16]}"
    package = ModuleType(name)
    package.__path__ = [str(folder)]
    sys.modules[name] = package
    return name
