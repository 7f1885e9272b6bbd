"""Stopping a run: it starts no new work, then running steps are cancelled and their results recorded.

A run that is handed back is neither paused nor ended. The next worker that claims it continues it.
"""

from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import Protocol

import anyio

from metier.engine.entries.run import RunFailed, RunPaused
from metier.events.payload import Payload
from metier.events.run import GracefulShutdownStarted, SignalReceived

SUSPENDED_SECONDS = 3600.0
"""Lease time of a suspended process; afterwards another process may continue its runs."""


class HeldLease(Protocol):
    async def keep(self, seconds: float | None) -> None:
        """Renew the lease for this time; None means its ordinary duration. Raises `LeaseLost`."""
        ...


class Stopper:
    """A request to stop, by a signal, a caller or a time limit. The current action gets a grace period."""

    def __init__(self, grace_seconds: float = 10.0, *, waits_for_model: bool = True, turns: int | None = None) -> None:
        """`waits_for_model`: the grace period applies to model calls too, not only to steps."""
        self.turns = turns
        """Number of turns before the run is handed back; None for no limit."""
        self.reason = ""
        self.signal = ""
        """Name of the first received signal."""
        self._grace_seconds = grace_seconds
        self._waits_for_model = waits_for_model
        self._signals = 0
        self._ending: RunFailed | RunPaused | None = None
        self.is_handing_back = False
        """True if the next worker that claims the run continues it."""
        self._scope: anyio.CancelScope | None = None
        self._followers: list[Stopper] = []
        self._leases: list[HeldLease] = []
        self._pending: list[Payload] = []
        self._emit: Callable[[Payload], None] = self._pending.append
        self._count_children: Callable[[], int] = int

    @property
    def is_set(self) -> bool:
        return bool(self.reason)

    @property
    def ending(self) -> RunFailed | RunPaused | None:
        """Return the entry that ends or pauses a stopped run; None for one that is handed back."""
        if self.is_handing_back:
            return None
        return self._ending or RunPaused(pause="signal", reason=f"Stopped by {self.reason}")

    def attach(self, emit: Callable[[Payload], None], *, count_children: Callable[[], int]) -> None:
        """Attach a log for signals; earlier ones are logged now."""
        # A signal may arrive before the log is open, while services are built.
        for payload in self._pending:
            emit(payload)
        self._emit, self._count_children = emit, count_children

    @contextmanager
    def holding(self, lease: HeldLease) -> Generator[None]:
        """Keep this lease during the block if the process is suspended (Ctrl-Z)."""
        self._leases.append(lease)
        try:
            yield
        finally:
            self._leases.remove(lease)

    async def suspend(self, stop: Callable[[], None]) -> None:
        """Suspend the process with `stop`, which returns when it continues, and keep its runs meanwhile.

        A suspended process cannot renew its leases, and another one would take over runs that this one still drives.
        If it is killed while suspended, its leases are void, because their process is dead.
        """
        # All leases are renewed before the process stops: afterwards nothing runs.
        leases = self.list_leases()
        for lease in leases:
            await lease.keep(SUSPENDED_SECONDS)
        stop()
        for lease in leases:
            await lease.keep(None)

    def list_leases(self) -> "list[HeldLease]":
        """List the leases of this run and of the runs that follow it."""
        return [*self._leases, *(lease for follower in self._followers for lease in follower.list_leases())]

    def describe(self) -> str:
        """Describe the stop to the user who sent the first signal."""
        running, seconds = self._count_children(), self._grace
        if running and seconds:
            what = f"waiting up to {seconds:g} s for {running} {'step' if running == 1 else 'steps'}"
        else:
            what = "the run is paused now"
        return f"Stopping: {what}; press Ctrl-C again to kill it"

    def shorten_grace(self, seconds: float) -> None:
        """Reduce the grace period of this run and its followers."""
        self._grace_seconds = min(self._grace_seconds, seconds)
        for follower in self._followers:
            follower.shorten_grace(seconds)

    def receive(self, signal: str) -> None:
        """Handle a signal. The first one starts a graceful stop, the second one ends the grace period."""
        self._signals += 1
        self.signal = self.signal or signal
        self._emit(SignalReceived(signal=signal, count=self._signals))
        if self._signals == 1:
            children = self._count_children()
            self._emit(GracefulShutdownStarted(grace_seconds=self._grace, children=children))
        self.request(signal)

    def request(self, reason: str) -> None:
        """Stop after the current work or the grace period. A second request stops at once."""
        is_second = self.is_set
        self.reason = self.reason or reason
        self._cancel_within(0 if is_second else self._grace)
        for follower in self._followers:
            follower.request(reason)

    def hand_back(self, reason: str) -> None:
        """Stop like `request`, and leave the run to the next worker that claims it."""
        # A run that is already stopping for another reason keeps that reason.
        self.is_handing_back = self.is_handing_back or not self.is_set
        # Child runs are only paused. They belong to no queue, and the next driver of their parent continues them.
        self.request(reason)

    def fail(self, failure: RunFailed) -> None:
        """Fail the run without a grace period. A run that is already stopping pauses instead."""
        if self.is_set:
            return
        self.reason, self._ending = failure.reason, failure
        self._cancel_within(0)
        for follower in self._followers:
            follower.fail(failure)

    def park(self, pause: RunPaused) -> None:
        """Pause the run at once, for this reason; its child runs are paused like by a signal."""
        if self.is_set:
            return
        self.reason, self._ending = pause.reason, pause
        self._cancel_within(0)
        for follower in self._followers:
            follower.request(pause.reason)

    @property
    def signals(self) -> int:
        """Return the number of received signals."""
        return self._signals

    @property
    def waits_for_model(self) -> bool:
        return self._waits_for_model

    @property
    def _grace(self) -> float:
        return self._grace_seconds if self._waits_for_model or self._count_children() else 0.0

    def _cancel_within(self, seconds: float) -> None:
        if self._scope is not None:
            # Never later: a second request must not extend the grace period of the first.
            self._scope.deadline = min(self._scope.deadline, anyio.current_time() + seconds)

    @contextmanager
    def followed_by(self, other: "Stopper") -> Generator[None]:
        """Stop the other run together with this one during the block. Stopping the other does not stop this one."""
        other.shorten_grace(self._grace_seconds)
        if isinstance(self._ending, RunFailed):
            other.fail(self._ending)
        elif self.is_set:
            other.request(self.reason)
        self._followers.append(other)
        try:
            yield
        finally:
            self._followers.remove(other)

    @contextmanager
    def interruptible(self) -> Generator[None]:
        """Allow `request` to interrupt this block."""
        with anyio.CancelScope() as scope:
            self._scope = scope
            try:
                yield
            finally:
                self._scope = None
