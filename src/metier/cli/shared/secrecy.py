"""Keep this process to itself: it holds keys, and what it starts runs as the same user.

A program that a tool starts gets none of the keys in its environment; it could still read them from
`/proc/<agent>/environ` or out of the agent's memory, because the kernel lets a user look into the user's own processes.
"""

import ctypes
import sys

_SET_DUMPABLE = 4
"""`PR_SET_DUMPABLE` of prctl(2)."""


def close_to_others() -> None:
    """No other process of this user reads its environment or memory, traces it, or gets a core dump of it.

    Linux only; elsewhere the systems decide. Ends with the process: what it starts begins afresh.
    """
    if sys.platform != "linux":
        return
    try:
        ctypes.CDLL(None).prctl(_SET_DUMPABLE, 0, 0, 0, 0)
    except (OSError, AttributeError):
        # A C library without it; the sandbox and the list of variables still stand.
        return
