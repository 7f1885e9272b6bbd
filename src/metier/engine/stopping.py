"""A way to say stop to a run: no new work, then no patience. What is under way is ended, and on record."""

from collections.abc import Generator
from contextlib import contextmanager

import anyio


class Stopper:
    """Set once, by a signal or a caller. The action under way gets a grace period, then it is cancelled."""

    def __init__(self, grace_seconds: float = 10.0) -> None:
        self.reason = ""
        self._grace_seconds = grace_seconds
        self._scope: anyio.CancelScope | None = None

    @property
    def is_set(self) -> bool:
        return bool(self.reason)

    def request(self, reason: str) -> None:
        """Stop after what is under way, or when the grace period is over. A second request does not wait."""
        is_second = self.is_set
        self.reason = self.reason or reason
        if self._scope is None:
            return
        if is_second:
            self._scope.cancel()
        else:
            self._scope.deadline = min(self._scope.deadline, anyio.current_time() + self._grace_seconds)

    @contextmanager
    def interruptible(self) -> Generator[None]:
        """Whatever happens in this block can be cut short by `request`."""
        with anyio.CancelScope() as scope:
            self._scope = scope
            try:
                yield
            finally:
                self._scope = None
