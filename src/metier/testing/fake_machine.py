"""A machine for tests: its clocks stand still until they are moved. `ids.Clock` and `store.machine.Machine` in one."""

from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

from metier.store.machine import SystemMachine


@dataclass
class FakeMachine:
    """Processes are the real ones."""

    boot: str = "boot-1"
    seconds: float = 1000.0
    wall: datetime = field(default_factory=lambda: datetime(2026, 11, 1, 12, 0, tzinfo=UTC))

    def boot_id(self) -> str:
        return self.boot

    def uptime(self) -> float:
        return self.seconds

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
        """Another boot: the uptime begins again."""
        self.boot += "-again"
        self.seconds = 1.0
