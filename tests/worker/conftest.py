"""Workers as real processes, and a private broker."""

import sys
from collections.abc import Generator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from metier.errors import MetierError
from services.rabbitmq_server import RabbitServer, run_rabbitmq
from services.redis_server import RedisServer, run_redis
from services.worker_load import Crew


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture
def crew() -> Generator[Crew]:
    with Crew() as crew:
        yield crew


@pytest.fixture
def redis_server() -> Generator[RedisServer]:
    try:
        with run_redis() as server:
            yield server
    except MetierError as failure:
        pytest.skip(f"no Redis: {failure.sentence}")


@pytest.fixture(scope="session")
def rabbit_server() -> Generator[RabbitServer]:
    """A node for all tests of a process, because it starts slowly. Each test has its own queue."""
    with run_rabbitmq() as server:
        yield server
