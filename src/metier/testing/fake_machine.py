"""A machine for tests whose clocks move only on request. Implements `ids.Clock` and `store.machine.Machine`."""

from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

from metier.store.machine import SystemMachine


@dataclass
class FakeMachine:
    """A machine with fake clocks, a fake boot ID and real processes."""

    boot: str = "boot-1"
    seconds: float = 1000.0
    wall: datetime = field(default_factory=lambda: datetime(2026, 11, 1, 12, 0, tzinfo=UTC))

    def boot_id(self) -> str:
        return self.boot

    def uptime(self) -> float:
        return self.seconds

    # Real, because the store also ends the lease of a process that no longer runs.
    def process(self) -> str:
        return SystemMachine().process()

    def is_gone(self, process: str) -> bool:
        return SystemMachine().is_gone(process)

    def now(self) -> datetime:
        return self.wall

    def monotonic(self) -> float:
        return self.seconds

    async def pass_seconds(self, seconds: float) -> None:
        self.seconds += seconds
        self.wall += timedelta(seconds=seconds)

    def restart(self) -> None:
        """Change the boot ID and reset the uptime, as a reboot does."""
        self.boot += "-again"
        # Lower than before, as after a real reboot: leases of the earlier boot seem to end far in the future.
        self.seconds = 1.0
