"""When the interpreter looks for reference cycles: not while it starts, and not when it ends.

A start imports tens of thousands of objects that stay as long as the process. Looking at them again and again took a
twentieth of a start, and looking at all of them once more at the end a tenth of a short run.
"""

import gc
from collections.abc import Generator
from contextlib import contextmanager

_THRESHOLDS = (20_000, 10, 10)
"""Look after so many new objects instead of 700: a run or a page builds tens of thousands that stay."""


def start_without_collection() -> None:
    gc.disable()
    gc.set_threshold(*_THRESHOLDS)


def begin_collection() -> None:
    """What there is now was imported and stays: leave it out of every later look.

    Nothing in a process that did not start with `start_without_collection`: its objects are not ours.
    """
    if not gc.isenabled():
        gc.freeze()
        gc.enable()


@contextmanager
def importing() -> Generator[None]:
    """The block imports; what it brings stays too."""
    if gc.get_threshold() == _THRESHOLDS:
        gc.disable()
    try:
        yield
    finally:
        begin_collection()


def end_without_collection() -> None:
    """The interpreter ends: it frees what is referenced, and need not look for what is not.

    Whatever must be written is closed by its owner before; nothing here relies on a cycle that is collected.
    """
    gc.disable()
    gc.freeze()
