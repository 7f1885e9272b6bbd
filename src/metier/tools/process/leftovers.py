"""Clear away what programs left behind whose supervisor was killed: scratch folders, processes, held places.

A supervisor clears away after itself, also when the agent dies. If it is killed too, its scratch folder stays, and no
process holds its lock any more. The next start finds it by that.
"""

import os
import signal
import stat
import sys
import tempfile
import time
from collections.abc import Iterable
from contextlib import suppress
from functools import lru_cache
from pathlib import Path

from metier.lazy_regex import lazy_regex
from metier.tools.process.run import find_marked
from metier.tools.process.sandbox.confinement import SCRATCH
from metier.tools.process.scratch import is_holder, list_places, release_places, remove_tree
from metier.tools.protected import INSTRUCTIONS, OWN_FILES, STANDING_FOLDERS

_NAME = lazy_regex(rf"{SCRATCH}([0-9a-f]{{16}})(\.removed)?")
YOUNG_SECONDS = 60
_HELD = (*STANDING_FOLDERS, *OWN_FILES, *INSTRUCTIONS)


def clear_scratch() -> int:
    """The number of scratch folders that were removed. What cannot be removed is left alone, and found again."""
    return sum(_clear(Path(tempfile.gettempdir()) / name) for name in _list_scratch())


def _list_scratch() -> list[str]:
    with suppress(OSError), os.scandir(tempfile.gettempdir()) as entries:
        names = [entry.name for entry in entries if entry.name.startswith(SCRATCH)]
        return [name for name in names if _NAME.fullmatch(name)]
    return []


def _clear(folder: Path) -> bool:
    """Only one of this user that no process holds."""
    import fcntl  # noqa: PLC0415  not on every platform

    found = _NAME.fullmatch(folder.name)
    assert found is not None, "listed by this pattern"
    try:
        state = folder.lstat()
        # A supervisor needs a moment between making its folder and locking it.
        is_own = stat.S_ISDIR(state.st_mode) and state.st_uid == os.geteuid()
        if not is_own or time.time() - state.st_mtime < YOUNG_SECONDS:
            return False
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    except OSError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        _kill(found[1])
        remove_tree(str(folder).removesuffix(".removed"))
    except OSError:
        return False
    finally:
        os.close(descriptor)
    return True


def _kill(mark: str) -> None:
    """What the kernel did not end together with the supervisor."""
    for process in find_marked(mark):
        with suppress(ProcessLookupError, PermissionError):
            os.kill(process, signal.SIGKILL)


def release_held(workspace: Path, own: Iterable[Path] = ()) -> None:
    """Remove empty folders at places that must stay free, if no program relies on them.

    `own` are the folders of the agent's own in the workspace, beside those with a fixed name.
    """
    if sys.platform == "win32":
        return
    root = str(workspace)
    below = f"{root.rstrip('/')}/"
    held = (*_HELD, *(path[len(below) :] for path in map(str, own) if path.startswith(below)))
    if any(is_holder(below + name) for name in _list_places(held)):
        with suppress(OSError):
            release_places(os.open(root, os.O_RDONLY | os.O_DIRECTORY), root, list(held))


@lru_cache(maxsize=8)
def _list_places(held: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(list_places(list(held)))
