"""Stores on files of their own, with a clock and a machine that the test moves."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from metier.store.machine import SystemMachine
from metier.store.sqlite import SqliteStore, open_sqlite_store
from metier.testing.store_case import Subject


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@dataclass
class FakeMachine:
    """A machine whose clocks stand still until they are moved. Processes are the real ones."""

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
        self.boot += "-again"
        self.seconds = 1.0


@pytest.fixture
def machine() -> FakeMachine:
    return FakeMachine()


@pytest.fixture
def database(tmp_path: Path) -> Path:
    return tmp_path / "runs" / "state.db"


@pytest.fixture
def open_store(database: Path, machine: FakeMachine) -> Callable[[], Awaitable[SqliteStore]]:
    return lambda: open_sqlite_store(database, clock=machine, machine=machine)


@pytest.fixture
def subject(open_store: Callable[[], Awaitable[SqliteStore]], machine: FakeMachine) -> Subject:
    return Subject(open=open_store, pass_seconds=machine.pass_seconds)
