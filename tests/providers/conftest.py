"""A local scripted server, and providers that use it."""

import sys
from collections.abc import AsyncGenerator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from wire_server import WireServer, running_server


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture
async def server(anyio_backend: str) -> AsyncGenerator[WireServer]:
    async with running_server() as running:
        yield running
