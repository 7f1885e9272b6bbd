"""IDs and time. Tests replace both through the protocols `Ids` and `Clock`."""

import getpass
import os
import secrets
import time
from datetime import UTC, datetime
from typing import Protocol

CHILD = "child-"
"""Prefix of the IDs of child runs."""
_SPANS_AT_ONCE = 64


class Clock(Protocol):
    """Wall time for records, monotonic time for durations and timeouts."""

    def now(self) -> datetime: ...

    def monotonic(self) -> float: ...


class Ids(Protocol):
    """Creates unique IDs."""

    def run_id(self, started: datetime) -> str: ...

    def trace_id(self) -> str: ...

    def span_id(self) -> str: ...


class SystemClock:
    """The machine's clocks, wall time in UTC."""

    def now(self) -> datetime:
        return datetime.now(UTC)

    def monotonic(self) -> float:
        return time.monotonic()


def measure_ms(clock: Clock, started: float) -> float:
    """Return the milliseconds since `started`, a value of `clock.monotonic()`."""
    return round((clock.monotonic() - started) * 1000, 3)


class SystemIds:
    """Random IDs; trace and span IDs have the sizes of W3C trace context."""

    def __init__(self) -> None:
        self._spans: list[str] = []
        """A stock of span IDs: every event needs one, and a system call for each would dominate its cost."""
        self._owner = 0

    def run_id(self, started: datetime) -> str:
        return format_run_id(started, os.urandom(6))

    def trace_id(self) -> str:
        return secrets.token_hex(16)

    def span_id(self) -> str:
        if not self._spans or self._owner != os.getpid():  # a forked process must not use the same IDs
            self._owner = os.getpid()
            stock = secrets.token_hex(8 * _SPANS_AT_ONCE)
            self._spans = [stock[start : start + 16] for start in range(0, len(stock), 16)]
        return self._spans.pop()


def format_run_id(started: datetime, entropy: bytes) -> str:
    """Format `YYYYMMDD-HHMMSS-<short-uuid>`: sorts by start, with 48 random bits within a second."""
    return f"{started.astimezone(UTC):%Y%m%d-%H%M%S}-{entropy.hex()}"


def get_user() -> str:
    """Return the user's name for approvals and answers; empty if the system has none."""
    try:
        return getpass.getuser()
    except (OSError, KeyError, ImportError):
        return ""
