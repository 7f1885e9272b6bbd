"""What all tests share: what a worker measured is saved when its tests are through, not when its process ends."""

import pytest
from coverage import Coverage


def pytest_sessionfinish(session: pytest.Session) -> None:
    """The runner gives its workers little time to end; what a worker measured must not depend on that."""
    measured = Coverage.current()
    if measured is not None and hasattr(session.config, "workerinput"):
        measured.stop()
        measured.save()
