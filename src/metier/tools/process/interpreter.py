"""Which Python runs what the agent starts beside itself."""

import sys


def base_interpreter() -> str:
    """The Python that this virtual environment was made from."""
    return getattr(sys, "_base_executable", "") or sys.executable
