"""Coverage of the processes that tests start: of one test in five.

Measuring costs such a process a third more, and most of them execute lines that many others execute too. The choice is
the same on every run.
"""

import os
import zlib
from collections.abc import Generator

import pytest

VARIABLE = "COVERAGE_PROCESS_CONFIG"
"""Where it is set, a Python process measures itself from its start."""
ONE_IN = 5


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    config = os.environ.get(VARIABLE)
    if config is None or zlib.crc32(item.nodeid.encode()) % ONE_IN == 0:
        return (yield)
    del os.environ[VARIABLE]
    try:
        return (yield)
    finally:
        os.environ[VARIABLE] = config
