"""Protect this process from other processes of the same user: it holds API keys.

Programs that tools start get no keys in their environment. But they run as the same user, so without this they could
read the keys from `/proc/<agent>/environ` or from the agent's memory.
"""

import ctypes
import sys

_SET_DUMPABLE = 4
"""`PR_SET_DUMPABLE` of prctl(2)."""


def deny_process_inspection() -> None:
    """Stop other processes of this user from reading its environment or memory, tracing it, or dumping its core.

    Linux only. The setting is not inherited by child processes.
    """
    if sys.platform != "linux":
        return
    try:
        ctypes.CDLL(None).prctl(_SET_DUMPABLE, 0, 0, 0, 0)
    except (OSError, AttributeError):
        # This C library lacks prctl. The sandbox and the filtered environment still protect the keys.
        return
