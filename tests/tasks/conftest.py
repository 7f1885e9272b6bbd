"""Fixtures for tests of delegation and tasks."""

import sys
from pathlib import Path

import pytest

# Tests are imported one by one, so what they share is put where Python finds it.
sys.path.insert(0, str(Path(__file__).parent))


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"
