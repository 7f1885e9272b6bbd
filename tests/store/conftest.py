"""Stores on files of their own, with a clock and a machine that the test moves."""

from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from metier.store.sqlite import SqliteStore, open_sqlite_store
from metier.testing.fake_machine import FakeMachine
from metier.testing.store_case import Subject


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


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
