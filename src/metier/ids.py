"""Identities and time, behind two seams so that tests decide both."""

import os
import secrets
import time
from datetime import UTC, datetime
from typing import Protocol


class Clock(Protocol):
    """Wall time for records, monotonic time for durations and timeouts."""

    def now(self) -> datetime: ...

    def monotonic(self) -> float: ...


class Ids(Protocol):
    """Fresh identities. Two calls never give the same one."""

    def run_id(self, started: datetime) -> str: ...

    def trace_id(self) -> str: ...

    def span_id(self) -> str: ...


class SystemClock:
    """The machine's clocks, wall time in UTC."""

    def now(self) -> datetime:
        return datetime.now(UTC)

    def monotonic(self) -> float:
        return time.monotonic()


class SystemIds:
    """Random identities; trace and span ids have the sizes that W3C trace context asks for."""

    def run_id(self, started: datetime) -> str:
        return format_run_id(started, os.urandom(6))

    def trace_id(self) -> str:
        return secrets.token_hex(16)

    def span_id(self) -> str:
        return secrets.token_hex(8)


def format_run_id(started: datetime, entropy: bytes) -> str:
    """`YYYYMMDD-HHMMSS-<short-uuid>`: sorts by start, 48 random bits apart within one second."""
    return f"{started.astimezone(UTC):%Y%m%d-%H%M%S}-{entropy.hex()}"
